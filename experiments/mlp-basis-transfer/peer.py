"""The same fit in PyTorch, nothing of pare's in it, and what else paper 0 may have measured: see READINGS.md.

peer.py [--width 256] [--steps 20000] [--batch 65536] [--device cuda]: a line for each reading of Section 8.4. The paper's own
training is what is asked for unless said otherwise, a minute of one H200 for each line.
"""

import argparse
import math
import time

import torch

READINGS = {  # whether the target has - x, and whether the MLP that is fitted has a skip
    "as printed": (True, True),
    "no - x": (False, True),
    "no - x, no skip": (False, False),
    "no skip": (True, False),
}
SAMPLES = 500_000  # of the linear map, as in the paper


def distances(found, wanted):
    cosine = torch.cosine_similarity(found, wanted, dim=1).mean().item()
    return f"{100 * ((found - wanted).norm() / wanted.norm()).item():5.2f} %  {1 - cosine:.5f}"


def measured(options, less_x, has_skip):
    """Errors and cosine distances of the trained MLP and of the linear map, as text."""
    h, device = options.width, options.device
    generator = torch.Generator(device=device).manual_seed(h)

    def drawn(*shape):
        return torch.randn(*shape, generator=generator, device=device)

    inner, outer = drawn(h, 4 * h) / math.sqrt(4 * h), drawn(4 * h, h) / math.sqrt(4 * h)
    linear = drawn(h, h) / math.sqrt(h) - (torch.eye(h, device=device) if less_x else 0)

    def target(x):
        return torch.nn.functional.gelu(x @ inner) @ outer + x @ linear

    up = torch.nn.Linear(h, 4 * h, bias=False, device=device)
    down = torch.nn.Linear(4 * h, h, bias=False, device=device)
    with torch.no_grad():
        up.weight.copy_(drawn(4 * h, h) / math.sqrt(h))
        down.weight.copy_(drawn(h, 4 * h) / math.sqrt(4 * h))

    def fit(x):
        return down(torch.nn.functional.gelu(up(x))) + (x if has_skip else 0)

    parameters = [up.weight, down.weight]
    optimiser = torch.optim.AdamW(parameters, lr=5e-3, weight_decay=0.1)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimiser, max(1, options.steps))
    for _ in range(options.steps):
        x = drawn(options.batch, h)
        wanted = target(x)
        loss = ((fit(x) - wanted) ** 2).sum() / (wanted**2).sum()
        optimiser.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(parameters, 3.0)
        optimiser.step()
        schedule.step()
    with torch.no_grad():
        gram, right = torch.zeros(h, h, dtype=torch.double, device=device), torch.zeros(h, h, dtype=torch.double, device=device)
        for _ in range(SAMPLES // 10_000):
            x = drawn(10_000, h)
            gram += (x.T @ x).double()
            right += (x.T @ target(x)).double()
        best = torch.linalg.solve(gram + 1e-6 * torch.eye(h, dtype=torch.double, device=device), right).float()
        x = drawn(8192, h)
        return f"MLP {distances(fit(x), target(x))}   linear map {distances(x @ best, target(x))}"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--width", type=int, default=256)
    parser.add_argument("--steps", type=int, default=20_000)
    parser.add_argument("--batch", type=int, default=65_536)
    parser.add_argument("--device", default="cuda")
    options = parser.parse_args()
    torch.backends.cuda.matmul.allow_tf32 = True
    print(f"h {options.width}, {options.steps} steps of {options.batch}: relative error and 1 - cos of")
    for words, (less_x, has_skip) in READINGS.items():
        begun = time.monotonic()
        print(f"{words:16} {measured(options, less_x, has_skip)}   {time.monotonic() - begun:.0f} s", flush=True)


if __name__ == "__main__":
    main()
