#!/usr/bin/env python3
"""The baseline, W_Q = I and W_V = I of this experiment in plain PyTorch, drawn and trained by nothing of pare: how far two
trainers that do the same are apart.

peer.py FOLDER [--form baseline|no-query|no-value] [--rate R] [--seed N] [--device cuda]: prints a line of JSON. FOLDER has
novels-train.txt and novels-val.txt.
"""

import argparse
import json
import math
import pathlib
import time

import torch
from torch import nn
from torch.nn import functional as F

WIDTH, LAYERS, HEADS, CONTEXT, VOCABULARY, WARMUP, LOWEST = 384, 6, 6, 512, 256, 100, 1e-4
MEASURED = 20 * 256  # windows of the other text


class Block(nn.Module):
    def __init__(self, form):
        super().__init__()
        self.form, projections = form, 3 if form == "baseline" else 2
        self.norm1, self.norm2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.into, self.out = nn.Linear(WIDTH, projections * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x):
        read = self.norm1(x)
        parts = list(self.into(read).split(WIDTH, -1))
        if self.form != "baseline":
            parts.insert(0 if self.form == "no-query" else 2, read.to(parts[0].dtype))
        q, k, v = (part.unflatten(-1, (HEADS, -1)).transpose(1, 2) for part in parts)
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(mixed.transpose(1, 2).flatten(2))
        return x + self.down(F.gelu(self.up(self.norm2(x)), approximate="tanh"))


class Gpt(nn.Module):
    def __init__(self, form):
        super().__init__()
        self.token, self.position = nn.Embedding(VOCABULARY, WIDTH), nn.Embedding(CONTEXT, WIDTH)
        self.blocks = nn.ModuleList(Block(form) for _ in range(LAYERS))
        self.norm = nn.LayerNorm(WIDTH)
        for name, weight in self.named_parameters():  # as GPT-2 starts
            if weight.dim() == 2:
                is_last = name.endswith(("out.weight", "down.weight"))
                nn.init.normal_(weight, 0.0, 0.02 / math.sqrt(2 * LAYERS) if is_last else 0.02)
            elif name.endswith("bias"):
                nn.init.zeros_(weight)

    def forward(self, ids, targets):
        x = self.token(ids) + self.position.weight
        for block in self.blocks:
            x = block(x)
        return F.cross_entropy(F.linear(self.norm(x), self.token.weight).flatten(0, 1), targets.flatten())


def windows(path, device):
    """Windows that lie side by side, each with the token after it, all on the device."""
    text = torch.from_file(str(path), size=path.stat().st_size, dtype=torch.uint8).to(device)
    return text[: (len(text) - 1) // CONTEXT * CONTEXT + 1].unfold(0, CONTEXT + 1, CONTEXT)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=pathlib.Path)
    parser.add_argument("--form", choices=["baseline", "no-query", "no-value"], default="baseline")
    parser.add_argument("--rate", type=float, default=2e-3)
    parser.add_argument("--steps", type=int, default=1600)
    parser.add_argument("--batch", type=int, default=256)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--device", default="cuda")
    options = parser.parse_args()

    torch.manual_seed(options.seed)
    model = Gpt(options.form).to(options.device)
    forward = torch.compile(model) if options.device == "cuda" else model
    learned, measured = (windows(options.folder / name, options.device) for name in ("novels-train.txt", "novels-val.txt"))
    groups = [{"params": [p for p in model.parameters() if (p.dim() == 2) == matrix], "weight_decay": 0.1 * matrix} for matrix in (True, False)]
    optimiser = torch.optim.AdamW(groups, lr=options.rate, betas=(0.9, 0.95), eps=1e-8, fused=options.device == "cuda")
    order = torch.cat([torch.randperm(len(learned)) for _ in range(1 + options.steps * options.batch // len(learned))])

    def loss_of(rows):
        with torch.autocast(options.device, dtype=torch.bfloat16):
            return forward(rows[:, :-1].long(), rows[:, 1:].long())

    begun = time.perf_counter()
    for step in range(options.steps):
        passed = (step - WARMUP) / max(1, options.steps - WARMUP)
        rate = options.rate * (step + 1) / WARMUP if step < WARMUP else LOWEST + (options.rate - LOWEST) * (1 + math.cos(math.pi * passed)) / 2
        for group in optimiser.param_groups:
            group["lr"] = rate
        loss_of(learned[order[step * options.batch : (step + 1) * options.batch].to(options.device)]).backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimiser.step()
        optimiser.zero_grad(set_to_none=True)
    with torch.no_grad():
        count = min(MEASURED, len(measured)) // options.batch
        losses = [loss_of(measured[i * options.batch : (i + 1) * options.batch]).item() for i in range(count)]
    print(json.dumps({"form": options.form, "rate": options.rate, "seed": options.seed, "steps": options.steps,
                      "parameters": sum(p.numel() for p in model.parameters()), "loss": sum(losses) / count,
                      "seconds": round(time.perf_counter() - begun, 1), "torch": torch.__version__}))


if __name__ == "__main__":
    main()
