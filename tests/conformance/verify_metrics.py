#!/usr/bin/env python3
"""The figures of `pare verify --json`, computed anew in numpy from the logits that `pare run` writes for both models.

Also of GGUF files, by the weights that PyPI's gguf finds in them, and of logits that transformers and NumPy wrote.
"""

import copy
import json
import os
import pathlib
import sys
import tempfile

HERE = pathlib.Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent)]
from report import Report, pare

Report("verify_metrics").peers("numpy", "safetensors.numpy")
import numpy
from safetensors.numpy import load_file, save_file

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


def with_error(values):
    """A mean and its standard error, with all values independent."""
    return values.mean(), values.std(ddof=1) / numpy.sqrt(len(values))


def statistics(reference, candidate, sequences):
    """What people say of a quantised model on a text; each number is named as it is found in the document."""
    pairs = [[log_softmax(logits[f"logits.{i}"].astype(numpy.float64)) for logits in (reference, candidate)] for i in range(len(sequences))]
    kl = numpy.concatenate([(numpy.exp(r) * (r - c)).sum(-1) for r, c in pairs])
    top = numpy.concatenate([r.argmax(-1) == c.argmax(-1) for r, c in pairs]).astype(numpy.float64)
    r, c = (numpy.concatenate([pair[side][numpy.arange(len(ids) - 1), ids[1:]] for pair, ids in zip(pairs, sequences)]) for side in (0, 1))
    found = {"mean_kl": with_error(kl), "nats_more": with_error(r - c), "same_top": with_error(top)}
    for name, right in (("reference_perplexity", r), ("candidate_perplexity", c)):
        mean, error = with_error(-right)
        found[name] = numpy.exp(mean), numpy.exp(mean) * error
    mean, error = with_error((numpy.exp(c) - numpy.exp(r)) ** 2)
    found["rms_probability"] = numpy.sqrt(mean), error / (2 * numpy.sqrt(mean))
    flat = {f"{name} {part}": number for name, pair in found.items() for part, number in zip(("value", "error"), pair)}
    return flat | {"rows": len(kl), "predicted": len(r), "median_kl": numpy.quantile(kl, 0.5), "high_kl": numpy.quantile(kl, 0.99), "max_kl": kl.max()}


def flattened(document):
    """As `statistics` names them."""
    flat = {}
    for name, value in document.items():
        flat |= {f"{name} {part}": number for part, number in value.items()} if isinstance(value, dict) else {name: value}
    return flat


def apart(ours, theirs, tolerance):
    wrong = {k: (ours[k], theirs[k]) for k in theirs if not abs(ours[k] - theirs[k]) <= tolerance * abs(theirs[k]) + 1e-15}
    return f"verify says, numpy says: {wrong}" if wrong else ""


# ---- models in blocks

NAMES = {  # of the tensors that are replaced alone: pare's, and those of transformers
    "blocks.0.mlp.down.weight": "model.layers.0.mlp.down_proj.weight",
    "blocks.1.attention.query.weight": "model.layers.1.self_attn.q_proj.weight",
    "embed.token.weight": "model.embed_tokens.weight",
    "head.weight": "lm_head.weight",
}


def check_blocks(report, work):
    """A GGUF file beside its reference: what is said of it is what folders say that gguf's numbers were put into."""
    os.environ["HF_HUB_OFFLINE"] = "1"
    transformers = report.transformers()
    [torch, _, _] = report.peers("torch", "gguf", "jsonschema")
    import gguf_files
    import gguf_writer
    import json_documents

    schema = json_documents.read_schemas()["verify"]
    generator = numpy.random.default_rng(2)
    sequences = [generator.integers(0, 128, length).tolist() for length in (31, 9, 31, 1, 60)]
    (work / "blocks.json").write_text(json.dumps(sequences))
    sizes = dict(vocab_size=128, hidden_size=256, intermediate_size=512, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2)
    model = gguf_files.drawn(transformers, transformers.LlamaConfig(**sizes, max_position_embeddings=64))

    def stored(name, tensors=None, dtype=torch.float64):
        changed = copy.deepcopy(model).to(torch.float64)
        changed.load_state_dict(changed.state_dict() | (tensors or {}))
        changed.to(dtype).save_pretrained(work / name)
        return name

    def logits(name, dtype="float64"):
        result = pare("run", name, "-o", "out", "--tokens", "blocks.json", "--dtype", dtype, "--force", "--threads", "1", cwd=work)
        report.check(f"run {name}", result.stderr if result.returncode else "")
        return load_file(work / "out")

    def verified(*arguments):
        result = pare("verify", *arguments, "--tokens", "blocks.json", "--json", "--threads", "1", cwd=work)
        document = json.loads(result.stdout) if result.stdout else {}
        report.check(f"verify {' '.join(arguments)}, its schema", json_documents.invalid(schema, document) or (result.stderr if result.returncode == 1 else ""))
        return document

    stored("blocks-reference", dtype=torch.float32)
    reference = logits("blocks-reference")
    for kind in ("Q8_0", "Q4_K"):
        path = f"{kind}.gguf"
        gguf_writer.write(work / path, model, gguf_writer.TYPES[kind])
        held = gguf_files.with_tensors(model, gguf_writer.read_again(work / path)).state_dict()
        dequantised = logits(stored(f"{kind}-folder", held))
        document = verified("blocks-reference", path, "--by-tensor")
        report.check(f"{kind}, its verdict", "" if document["verdict"] == "quantised" else document["verdict"])
        expected = statistics(reference, dequantised, sequences)
        report.check(f"{kind}, statistics", apart(flattened(document["statistics"]), expected, 1e-6))
        expected = metrics(reference, dequantised, sequences, int(document["inputs"]["drawn_seed"], 16))
        report.check(f"{kind}, metrics", apart(document["metrics"], expected, 1e-6))
        costs = {cost["tensor"]: cost for cost in document["tensor_costs"]}
        report.check(f"{kind}, every matrix has its cost", "" if len(costs) == len(document["tensor_costs"]) == 16 else f"{sorted(costs)}")
        for ours, theirs in NAMES.items():
            told = statistics(reference, logits(stored(f"{kind}-{ours}", {theirs: held[theirs]})), sequences)
            expected = {"mean_kl value": told["mean_kl value"], "mean_kl error": told["mean_kl error"], "max_kl": told["max_kl"]}
            report.check(f"{kind}, what {ours} costs", apart(flattened(costs[ours]), expected, 1e-6))

    # What another program computes from the same weights.
    even = [sequences[0], sequences[2]]
    (work / "even.json").write_text(json.dumps(even))
    for dtype, verdict in ((torch.float32, "within_noise"), (torch.float64, "equivalent")):
        with torch.no_grad():
            exactly = dtype == torch.float64  # transformers computes parts in float32 unless it is kept from that
            said = torch.stack([gguf_files.answers(model, ids) for ids in even]) if exactly else copy.deepcopy(model).to(dtype)(input_ids=torch.tensor(even)).logits
            said = said.numpy()
        save_file({"logits": said}, work / "said")
        result = pare("verify", "blocks-reference", "--logits", "said", "--tokens", "even.json", "--json", "--threads", "1", cwd=work)
        document = json.loads(result.stdout) if result.stdout else {}
        report.check(f"logits of transformers in {dtype}", "" if document.get("verdict") == verdict else f"{document.get('verdict')}: {result.stderr}")
        report.check(f"logits of transformers in {dtype}, the schema", json_documents.invalid(schema, document))
        moved = said.copy()
        moved[1, 4] += 1e-3 * generator.standard_normal(128).astype(moved.dtype)
        save_file({"logits": moved}, work / "said")
        result = pare("verify", "blocks-reference", "--logits", "said", "--tokens", "even.json", "--json", "--threads", "1", cwd=work)
        document = json.loads(result.stdout) if result.stdout else {}
        found = document.get("verdict"), (document.get("first_divergence") or {}).get("sequence"), result.returncode
        report.check(f"a row of logits in {dtype} moved", "" if found == ("different", 1, 3) else f"{found}: {result.stderr}")
        report.check(f"a row of logits in {dtype} moved, the schema", json_documents.invalid(schema, document))
    wrong = gguf_writer.gguf_tensors(model)
    name = "blk.1.ffn_down.weight"
    wrong[name] = wrong[name] + 0.02 * wrong[name].std() * torch.randn(wrong[name].shape, generator=torch.Generator().manual_seed(1))
    gguf_writer.write(work / "wrong.gguf", model, gguf_writer.TYPES.Q8_0, tensors=wrong)
    report.check("wrong blocks", "" if (found := verified("blocks-reference", "wrong.gguf")["verdict"]) == "different" else found)


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
            if model == "candidate":
                told = statistics(reference, logits(model, dtype), sequences)
                report.check(f"{model} in {dtype}, statistics", apart(flattened(ours["statistics"]), told, 1e-6))
            if model == "reference":  # nothing is stored anew, so the noise is that of the arithmetic alone
                report.check(f"noise floor beside {model}", apart(ours["noise_floor"], expected, 1e-2))
        check_blocks(report, work)
    report.finish()


if __name__ == "__main__":
    main()
