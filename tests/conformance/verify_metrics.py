#!/usr/bin/env python3
"""The figures of `pare verify --json`, computed anew in numpy from the logits that `pare run` writes for both models."""

import json
import pathlib
import sys
import tempfile

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent))
from report import Report, pare

Report("verify_metrics").peers("numpy", "safetensors.numpy")
import numpy
from safetensors.numpy import load_file

ARCHITECTURE = {
    "width": 24, "vocab": 301, "context": 64,
    "blocks": [{"repeat": 2, "attention": {"heads": 4, "kv_heads": 2, "head_width": 6, "rope": {}, "norm": {"kind": "rms"}},
                "mlp": {"width": 40, "activation": "silu", "gated": True, "norm": {"kind": "rms"}}}],
    "final_norm": {"kind": "rms"},
}


def log_softmax(x):
    shifted = x - x.max(-1, keepdims=True)
    return shifted - numpy.log(numpy.exp(shifted).sum(-1, keepdims=True))


def columns_of(count, seed):
    """Those that scales are taken from: all, or eight stretches of 32."""
    if count <= 256:
        return numpy.arange(count)
    apart = count // 8
    return numpy.concatenate([numpy.arange(32) + s * apart + seed % (apart - 31) for s in range(8)])


def errors(r, c, seed):
    """Of each row, as docs/formats.md defines them."""
    sample = r[:, columns_of(r.shape[1], seed)]
    center = numpy.median(sample, -1, keepdims=True)
    spread = 6 * numpy.median(numpy.abs(sample - center), -1, keepdims=True)
    spread = numpy.maximum(spread, numpy.median(spread[spread > 0]) / 64)
    scale = numpy.maximum(numpy.maximum(numpy.abs(r - center), numpy.abs(r) / 1024), spread)
    return (numpy.abs(r - c) / scale).max(-1)


def metrics(reference, candidate, sequences, seed):
    """As docs/formats.md defines them, over all tokens of all sequences."""
    r, c = (numpy.concatenate([logits[f"logits.{i}"].astype(numpy.float64) for i in range(len(sequences))])
            for logits in (reference, candidate))
    kl = (numpy.exp(log_softmax(r)) * (log_softmax(r) - log_softmax(c))).sum(-1)

    def nll(logits):
        return -numpy.concatenate([log_softmax(logits[f"logits.{i}"].astype(numpy.float64))[numpy.arange(len(ids) - 1), ids[1:]]
                                   for i, ids in enumerate(sequences)]).mean()

    return {"max_relative_logit_error": errors(r, c, seed).max(),
            "mean_kl_nats": kl.mean(), "max_kl_nats": kl.max(),
            "top1_agreement": (r.argmax(-1) == c.argmax(-1)).mean(),
            "reference_nll_nats": nll(reference), "candidate_nll_nats": nll(candidate)}


def apart(ours, theirs, tolerance):
    wrong = {k: (ours[k], theirs[k]) for k in theirs if not abs(ours[k] - theirs[k]) <= tolerance * abs(theirs[k]) + 1e-15}
    return f"verify says, numpy says: {wrong}" if wrong else ""


def main():
    report = Report("verify_metrics")
    generator = numpy.random.default_rng(1)
    sequences = [generator.integers(0, 301, length).tolist() for length in (40, 7, 40, 1, 64)]
    with tempfile.TemporaryDirectory() as folder:
        work = pathlib.Path(folder)
        (work / "a.json").write_text(json.dumps(ARCHITECTURE))
        (work / "ids.json").write_text(json.dumps(sequences))
        for name, seed in (("reference", 1), ("candidate", 2)):
            made = pare("init", "a.json", "-o", name, "--seed", seed, "--generic", cwd=work)
            report.check(f"init {name}", made.stderr if made.returncode else "")

        def logits(model, dtype):
            result = pare("run", model, "-o", "out", "--tokens", "ids.json", "--dtype", dtype, "--force", cwd=work)
            report.check(f"run {model} in {dtype}", result.stderr if result.returncode else "")
            return load_file(work / "out")

        reference = logits("reference", "float64")
        for model, dtype, tolerance in (("candidate", "float64", 1e-11), ("reference", "float32", 1e-2),
                                        ("candidate", "float32", 1e-6)):
            result = pare("verify", "reference", model, "--tokens", "ids.json", "--dtype", dtype, "--json", cwd=work)
            if result.returncode not in (0, 3):
                report.check(f"verify {model}", result.stderr)
                continue
            ours = json.loads(result.stdout)
            seed = int(ours["inputs"]["drawn_seed"], 16)
            expected = metrics(reference, logits(model, dtype), sequences, seed)
            report.check(f"{model} in {dtype}", apart(ours["metrics"], expected, tolerance))
            if model == "reference":  # nothing is stored anew, so the noise is that of the arithmetic alone
                report.check(f"noise floor beside {model}", apart(ours["noise_floor"], expected, 1e-2))
    report.finish()


if __name__ == "__main__":
    main()
