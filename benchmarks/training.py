#!/usr/bin/env python3
"""A training step of pare against the same model in plain PyTorch: same start, data, optimiser and machine, in one run.

    python benchmarks/training.py [--device cpu|cuda] [--only gpt2,bytes,small] [--peers eager,compile] [--steps N]

The peer is a GPT written as people write it (one product for query, key and value, scaled_dot_product_attention,
cross_entropy over all logits, AdamW(fused=True), clip_grad_norm_; bfloat16 by autocast on a GPU), started from
checkpoint 0 of pare's run and fed by its order.i32. Both must give the same losses. Prints tokens per second of each,
their ratio (above 1: pare is faster) and, on a GPU, the most memory that the process held.
"""

import argparse
import json
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile
import threading
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "tests"))
from training_peer import gpt2_shaped, rate  # noqa: E402  (the folder above is not a package)

MODELS = {  # width, layers, heads, context, vocabulary, sequences of a step
    "gpt2": (768, 12, 12, 1024, 50257, 32),
    "gpt2-round": (768, 12, 12, 1024, 50304, 32),  # a vocabulary as long as matrix units like it
    "bytes": (384, 6, 6, 512, 256, 256),
    "small": (256, 4, 4, 256, 256, 8),
}
OPTIMISER = {"lr": 6e-4, "min_lr": 6e-5, "warmup": 20, "betas": [0.9, 0.95], "decay": 0.1, "clip": 1.0}
WARM = 10  # steps that are not counted: libraries load, kernels are chosen, a compiler compiles


def config(name, options, text):
    return {"architecture": gpt2_shaped(*MODELS[name][:5]), "data": {"train": [str(text)], "format": "uint16"}, "batch": MODELS[name][5],
            "steps": options.steps, "dtype": options.dtype, "optimiser": OPTIMISER, "seed": 1,
            "evaluate": {"every": 10 ** 6, "batches": 1}, "checkpoint": {"every": 10 ** 6}}


def write_text(name, options, path):
    """Tokens with something to learn: each is likely to be followed by a fixed other."""
    import numpy

    _, _, _, context, vocab, batch = MODELS[name]
    rng = numpy.random.default_rng(3)
    count = min(context * batch * options.steps, 20_000_000) + 200 * context
    following = rng.permutation(vocab)
    tokens = rng.integers(0, vocab, count)
    known = rng.random(count) < 0.7
    for i in range(1, count) if count < 3_000_000 else ():
        if known[i]:
            tokens[i] = following[tokens[i - 1]]
    if count >= 3_000_000:  # by pairs: a loop over twenty million is slow
        tokens[1::2] = numpy.where(known[1::2], following[tokens[0:count - count % 2:2]], tokens[1::2])
    tokens.astype("<u2").tofile(path)


def gpt(name):
    import torch
    from torch import nn
    from torch.nn import functional as F

    width, layers, heads, context, vocab, _ = MODELS[name]

    class Block(nn.Module):
        def __init__(self):
            super().__init__()
            self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
            self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
            self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

        def forward(self, x):
            b, t, _ = x.shape
            q, k, v = (part.view(b, t, heads, width // heads).transpose(1, 2) for part in self.qkv(self.norm1(x)).split(width, 2))
            y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
            x = x + self.out(y.transpose(1, 2).reshape(b, t, width))
            return x + self.down(F.gelu(self.up(self.norm2(x)), approximate="tanh"))

    class Gpt(nn.Module):
        def __init__(self):
            super().__init__()
            self.token, self.position = nn.Embedding(vocab, width), nn.Embedding(context, width)
            self.blocks = nn.ModuleList(Block() for _ in range(layers))
            self.norm = nn.LayerNorm(width)

        def forward(self, ids, targets):
            x = self.token(ids) + self.position(torch.arange(ids.shape[1], device=ids.device))
            for block in self.blocks:
                x = block(x)
            logits = F.linear(self.norm(x), self.token.weight)
            return F.cross_entropy(logits.flatten(0, 1), targets.flatten())

    return Gpt()


def load(model, checkpoint):
    import torch
    from safetensors.torch import load_file

    ours = {}
    for part in checkpoint.glob("model*.safetensors"):  # one from each rank
        ours |= load_file(part)
    state = {"token.weight": ours["embed.token.weight"], "position.weight": ours["embed.position.weight"],
             "norm.weight": ours["norm.weight"], "norm.bias": ours["norm.bias"]}
    for n in range(len(model.blocks)):
        a, m, h = f"blocks.{n}.attention.", f"blocks.{n}.mlp.", f"blocks.{n}."
        for kind in ("weight", "bias"):
            state[f"{h}qkv.{kind}"] = torch.cat([ours[f"{a}{part}.{kind}"] for part in ("query", "key", "value")])
            state |= {f"{h}out.{kind}": ours[f"{a}output.{kind}"], f"{h}up.{kind}": ours[f"{m}up.{kind}"],
                      f"{h}down.{kind}": ours[f"{m}down.{kind}"], f"{h}norm1.{kind}": ours[f"{a}norm.{kind}"],
                      f"{h}norm2.{kind}": ours[f"{m}norm.{kind}"]}
    model.load_state_dict(state)


def peer(name, kind, run, text, options):
    """In a process of its own. Prints losses and seconds of each step as JSON."""
    import numpy
    import torch

    cuda = options.device == "cuda"
    torch.set_float32_matmul_precision("highest")
    model = gpt(name)
    load(model, pathlib.Path(run) / "checkpoints" / "0")
    model = model.to(options.device).train()
    step_model = torch.compile(model) if kind == "compile" else model
    matrices = [p for p in model.parameters() if p.dim() >= 2]
    vectors = [p for p in model.parameters() if p.dim() < 2]
    optimiser = torch.optim.AdamW([{"params": matrices, "weight_decay": OPTIMISER["decay"]}, {"params": vectors, "weight_decay": 0.0}],
                                  betas=tuple(OPTIMISER["betas"]), eps=1e-8, fused=True)
    context, batch = MODELS[name][3], MODELS[name][5]
    tokens = torch.from_numpy(numpy.fromfile(text, dtype="<u2").astype("int64"))
    order = numpy.fromfile(pathlib.Path(run) / "order.i32", dtype="<i4")
    losses, times = [], []
    waiting = None
    begun = time.perf_counter()
    for step in range(options.steps):
        for group in optimiser.param_groups:
            group["lr"] = rate(OPTIMISER, step, options.steps)
        rows = torch.stack([tokens[w * context:(w + 1) * context + 1] for w in order[step * batch:(step + 1) * batch]])
        ids, targets = rows[:, :-1].contiguous(), rows[:, 1:].contiguous()
        if cuda:
            ids, targets = (x.pin_memory().to("cuda", non_blocking=True) for x in (ids, targets))
        with torch.autocast(options.device, dtype=torch.bfloat16, enabled=options.dtype == "bfloat16"):
            loss = step_model(ids, targets)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), OPTIMISER["clip"])
        optimiser.step()
        optimiser.zero_grad(set_to_none=True)
        if waiting is not None:  # one step behind, so that nobody waits for the device
            losses.append(waiting.item())
            times.append(time.perf_counter() - begun)
        waiting = loss.detach()
    losses.append(waiting.item())
    times.append(time.perf_counter() - begun)
    peak = torch.cuda.max_memory_allocated() if cuda else 0
    print(json.dumps({"losses": losses, "seconds": times, "allocated": peak}))


class Memory:
    """The most that the GPU held while a process ran, as nvidia-smi sees it."""

    def __init__(self, on):
        self.most, self.on = 0, on
        self.thread = threading.Thread(target=self.watch, daemon=True)

    def watch(self):
        while self.on:
            out = subprocess.run(["nvidia-smi", "--query-gpu=memory.used", "--format=csv,noheader,nounits"], capture_output=True, text=True)
            self.most = max(self.most, int(out.stdout.split()[0]) if out.stdout.split() else 0)
            time.sleep(0.2)

    def __enter__(self):
        if self.on:
            self.thread.start()
        return self

    def __exit__(self, *_):
        if self.on:
            self.on = False
            self.thread.join()


def timed(command, options):
    with Memory(options.device == "cuda") as memory:
        done = subprocess.run(list(map(str, command)), capture_output=True, text=True, env={**os.environ, "OMP_NUM_THREADS": str(options.threads)})
    if done.returncode != 0:
        sys.exit(f"benchmark: {' '.join(map(str, command))}\n{done.stdout[-2000:]}{done.stderr[-4000:]}")
    return done.stdout, memory.most


def per_second(seconds, tokens):
    steps = [b - a for a, b in zip(seconds[WARM:], seconds[WARM + 1:])]
    return tokens * len(steps) / (seconds[-1] - seconds[WARM]), tokens / statistics.median(steps)


def compare(name, options, work):
    tokens = MODELS[name][3] * MODELS[name][5]
    text, run = work / f"{name}.u16", work / name
    write_text(name, options, text)
    (work / f"{name}.json").write_text(json.dumps(config(name, options, text)))
    _, memory = timed([options.pare, "train", work / f"{name}.json", "-o", run, "--quiet", "--device", options.device], options)
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    ours = [line for line in lines if "loss" in line]
    mean, median = per_second([line["seconds"] for line in ours], tokens)
    print(f"{name:10} pare     {mean:12,.0f} tokens/s (median step {median:12,.0f}), held {memory:,} MiB", flush=True)
    for kind in options.peers.split(","):
        out, memory = timed([sys.executable, __file__, "--peer", name, kind, run, text, "--device", options.device, "--steps", options.steps,
                             "--threads", options.threads, "--dtype", options.dtype], options)
        theirs = json.loads(out.splitlines()[-1])
        their_mean, their_median = per_second(theirs["seconds"], tokens)
        # Roundings of a narrow type grow while the loss falls fastest: what must agree are the first steps.
        apart = [abs(a["loss"] - b) for a, b in zip(ours, theirs["losses"], strict=True)]
        first = max(apart[:5])
        print(f"{name:10} {kind:8} {their_mean:12,.0f} tokens/s (median step {their_median:12,.0f}), held {memory:,} MiB: "
              f"ratio {mean / their_mean:.2f} ({median / their_median:.2f}); losses {ours[0]['loss']:.4f} to {ours[-1]['loss']:.4f}, "
              f"apart at most {first:.1e} in the first five steps, {max(apart):.1e} in all, {apart[-1]:.1e} in the last", flush=True)
        if first > (0.01 if options.dtype == "bfloat16" else 1e-4):
            sys.exit(f"benchmark: {name} and {kind} do not compute the same: {[line['loss'] for line in ours[:5]]} {theirs['losses'][:5]}")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--dtype", default="", help="bfloat16 on a GPU, float32 elsewhere")
    parser.add_argument("--only", default="")
    parser.add_argument("--peers", default="")
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    parser.add_argument("--pare", default=ROOT / "build" / "pare")
    parser.add_argument("--peer", nargs=4, metavar=("MODEL", "KIND", "RUN", "TEXT"))
    options = parser.parse_args()
    options.dtype = options.dtype or ("bfloat16" if options.device == "cuda" else "float32")
    if options.peer:
        return peer(*options.peer, options)
    options.peers = options.peers or ("eager,compile" if options.device == "cuda" else "eager")
    names = options.only or ("bytes,gpt2-round,gpt2" if options.device == "cuda" else "small")
    with tempfile.TemporaryDirectory() as folder:
        for name in names.split(","):
            compare(name, options, pathlib.Path(folder))


if __name__ == "__main__":
    main()
