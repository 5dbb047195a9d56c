#!/usr/bin/env python3
"""Prints the tables of README (savings, norms, claims) from what pare prints, that of docs/certificates (certificates NAME ...)
from the files beside it, and that of docs/cluster.md (cluster), which is computed. tools/docs.py puts them there."""

import argparse
import collections
import json
import pathlib
import subprocess

CERTIFICATES = pathlib.Path(__file__).resolve().parent.parent / "docs" / "certificates"
# Well-known models, one for each kind of attention and of norm that pare has a preset of.
MODELS = {"gpt2": "GPT-2", "bert-base": "BERT base", "vit-b-16": "ViT-B/16",
          "qwen2.5-0.5b": "Qwen2.5 0.5B", "pythia-6.9b": "Pythia 6.9B", "llama-3.1-8b": "Llama 3.1 8B"}
PAPERS = {"0": ("One of query, key and value is redundant", "2510.23912"), "1": ("Skipless blocks need only K and V", "2404.12362"),
          "2": ("An MLP neuron is an attention head", "2309.08593"), "3": ("The transformer reduced to its minimum", "2410.13732"),
          "4": ("Rank, head and entropy collapse", "2604.23681"), "5": ("No LayerNorm at inference time", "2507.02559")}
VERDICTS = ["holds", "holds with a correction", "does not hold", "undecided", "not measured"]


def pare(*arguments):
    return json.loads(subprocess.run(["pare", *arguments, "--json", "--quiet"], check=True, capture_output=True).stdout)


def row(*cells):
    print("| " + " | ".join(map(str, cells)) + " |")


def head(*names, others="---:"):
    row(*names)
    print("|---" + f"|{others}" * (len(names) - 1) + "|")


def size(number):
    for unit in ("B", "KB", "MB", "GB"):
        if abs(number) < 1000 or unit == "GB":
            return f"{number:.3g} {unit}"
        number /= 1000


def share(removable, found):
    return f"{100 * removable / found['parameters']:.2f} %"


def beside(without):
    """What has to go besides the norms."""
    named = (["MLP skips"] if "skips" in without["what"] else []) + (["tied head"] if without["obstacles"] else [])
    return f" ({' and '.join(named)} too)" if named else ""


def savings():
    head("model", "parameters", "can go, exactly", "share", "bytes in bfloat16", "cache per token", "share without norms")
    for preset, name in MODELS.items():
        found = pare("audit", preset)
        cache, halves = found["kv_cache_bytes_per_token"]["bfloat16"], any(p["id"] == "cache_keys_only" and p["applies"] for p in found["passes"])
        shown = "none" if not cache else f"{size(cache)} → {size(cache // 2)}" if halves else f"{size(cache)}, stays"
        without = found["without_norms"]
        row(name, f"{found['parameters']:,}", f"{found['removable']:,}", share(found["removable"], found), f"-{size(2 * found['removable'])}", shown,
            share(without["removable"], found) + beside(without))


def norms():
    """Of both models: of each kind the row with the most seeds, and the longest."""
    head("model", "trained away", "steps", "cost, nats per token", "40 stories", "seeds")
    kinds = collections.defaultdict(list)
    for found in pare("audit", "gpt2")["without_norms"]["measured"]:
        kinds[found["model"], found["what"]].append(found)
    for (model, what), of_kind in kinds.items():
        most, longest = max(of_kind, key=lambda found: found["seeds"]), max(of_kind, key=lambda found: found["steps"])
        for found in [longest] * (longest is not most and longest["steps"] > 12000) + [most]:
            spread = "" if found["half_width"] is None else f" ± {found['half_width']:.4f}"
            stories = "" if found["stories"] is None else f"{found['stories']:.4f}"
            stories += "" if found["stories_half_width"] is None else f" ± {found['stories_half_width']:.4f}"
            row(model, what, f"{found['steps']:,}", "stopped" if found["nats"] is None else f"{found['nats']:+.4f}{spread}", stories,
                f"{found['seeds']}" + (f", {found['stopped']} stopped" if found["stopped"] else ""))


def claims():
    listed = pare("reproduce", "--list")
    counts = collections.Counter((claim["paper"][0], claim["verdict"]) for part in ("claims", "further") for claim in listed[part])
    head("paper", *(verdict.replace("holds with a correction", "with a correction") for verdict in VERDICTS))
    for number, (title, arxiv) in PAPERS.items():
        row(f"{number}. [{title}](https://arxiv.org/abs/{arxiv})", *(counts[number, verdict] for verdict in VERDICTS))
    if sum(counts.values()) != sum(counts[number, verdict] for number in PAPERS for verdict in VERDICTS):
        raise SystemExit("tables: a claim has a paper or a verdict that this table has no cell for")


def certificates(*names):
    head("certificate", "passes, and parameters saved by each", "parameters", "nats per token", "relative error", "predicted", "noise",
         "rows of weights moved by", "verdict", others="---")
    for name in names:
        found = json.loads((CERTIFICATES / f"{name}.json").read_text())
        before, after = (found[side]["parameters"] for side in ("reference", "candidate"))
        nats = [found["metrics"][f"{side}_nll_nats"] for side in ("reference", "candidate")]
        row(f"[{name}]({name}.json)", ", ".join(f"{one['id']} {one['saved_parameters']:,}" for one in found["passes"] if one["applies"]),
            f"{before:,} → {after:,} ({100 * (after - before) / before:.2f} %)", "-" if None in nats else " → ".join(f"{value:.9f}" for value in nats),
            f"{found['metrics']['max_relative_logit_error']:.1e}", f"{found['predicted_error']:.1e}", f"{found['noise_floor']['max_relative_logit_error']:.1e}",
            f"{found['proof']['weights_moved_by']:.1e}", found["verdict"])


# docs/cluster.md says where these come from.
GPU_FLOPS, GPU_BYTES = 330e12, 141e9  # of an H200: what a step of GPT-2 124M reaches, and its memory
IN_HOST, BETWEEN_HOSTS, GPUS_OF_HOST, LATENCY = 300e9, 40e9, 8, 20e-6  # bytes/s of one GPU to its neighbours, seconds of a hop
# Parameters, those outside of blocks, layers, width, context, sequences of a GPU.
CLUSTER_MODELS = {"124M": (124e6, 39e6, 12, 768, 1024, 32), "7B": (6.7e9, 0.26e9, 32, 4096, 4096, 1), "70B": (69e9, 0.52e9, 80, 8192, 4096, 1)}


def ring(gpus, size, times=1):
    """Seconds to reduce-scatter or gather so many bytes around a ring, over its slowest link, each time anew."""
    return times * (gpus - 1) * (size / gpus / (IN_HOST if gpus <= GPUS_OF_HOST else BETWEEN_HOSTS) + LATENCY)


def cluster():
    """A step in bfloat16 with gradients, masters and moments in float32."""
    head("model", "GPUs", "tokens a step", "each holds", "GB of weights and state", "compute, s", "exchange, s", "efficiency")
    for name, (parameters, outside, layers, width, context, sequences) in CLUSTER_MODELS.items():
        tokens = context * sequences
        compute = tokens * (6 * parameters + 6 * layers * width * context) / GPU_FLOPS
        inside, block = parameters - outside, (parameters - outside) / layers
        for gpus in (8, 64, 1024):
            reduced, gathered = ring(gpus, 4 * parameters), ring(gpus, 2 * parameters)
            by_block = ring(gpus, 4 * outside) + ring(gpus, 2 * outside) + ring(gpus, (4 + 2 + 2) * block, layers)
            for holds, kept, exchange, passes in [
                    ("all", (2 + 4 + 4 + 8) * parameters, 2 * reduced, 3),
                    ("its share of the state", (2 + 4 + (4 + 8) / gpus) * parameters, reduced + gathered, 3),
                    ("its share of all", (2 + 4 + 12 / gpus) * outside + 18 * inside / gpus + (2 + 2 + 4 + 4) * block, by_block, 4)]:
                spent, fits = compute * passes / 3, kept < 0.8 * GPU_BYTES  # the rest is for activations
                best, worst = compute / max(spent, exchange), compute / (spent + exchange)
                row(name, f"{gpus:,}", f"{tokens * gpus:,}", holds, f"{kept / 1e9:,.1f}", f"{spent:.3g}" if fits else "does not fit",
                    f"{exchange:.3g}" if fits else "", f"{100 * worst:.0f} to {100 * best:.0f} %" if fits else "")


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    tables = {"savings": savings, "norms": norms, "claims": claims, "certificates": certificates, "cluster": cluster}
    parser.add_argument("table", choices=tables)
    parser.add_argument("names", nargs="*", help="of certificates")
    options = parser.parse_args()
    tables[options.table](*options.names)


if __name__ == "__main__":
    main()
