#!/usr/bin/env python3
"""Files that people have: with tensors that the model does not use, and with numbers that look wrong and are not.

A LayerNorm with an epsilon of 1e12 is how published GPT-2s do without one: pare runs them as transformers does, and takes
it out.
`--form compat` keeps tensors that the model does not use, and whoever uses them computes what they did before: a BERT saved from BertForPreTraining and read as BertForMaskedLM has a pooler and a second head that only others read:
AutoModel has to pool the same of what pare wrote. Bytes are compared by the safetensors package.
"""

import json
import pathlib
import shutil
import sys
import tempfile

HERE = pathlib.Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent)]
from report import SHARED, Report, ended, expect, pare  # noqa: E402  (the folders above are not a package)

TOLERANCE = 1e-12  # both in float64, through two layers: see compat.py
POOLER = ["bert.pooler.dense.bias", "bert.pooler.dense.weight"]
UNUSED = sorted([*POOLER, "cls.seq_relationship.bias", "cls.seq_relationship.weight", "bert.embeddings.position_ids"])


def drawn(model, torch):
    """No bias of zero, no gain of one: what a pass moves has to show."""
    generator = torch.Generator().manual_seed(5)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.3 * torch.randn(parameter.shape, generator=generator, dtype=parameter.dtype))
    return model.eval()


def save_bert(folder, torch, transformers, dtype, **options):
    """As pre-training leaves it, but for the class that config.json names; with a buffer that older files have."""
    from safetensors.torch import load_file, save_file

    config = transformers.BertConfig(hidden_size=16, num_hidden_layers=2, num_attention_heads=2, intermediate_size=24,
                                     vocab_size=40, max_position_embeddings=20)
    model = drawn(transformers.BertForPreTraining(config).to(dtype), torch)
    model.save_pretrained(folder, **options)
    settings = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(settings | {"architectures": ["BertForMaskedLM"]}))
    file = sorted(folder.glob("*.safetensors"))[0]
    tensors = load_file(file) | {"bert.embeddings.position_ids": torch.arange(20)[None]}
    save_file(tensors, file, {"format": "pt"})
    index = folder / "model.safetensors.index.json"
    if index.exists():
        listed = json.loads(index.read_text())
        listed["weight_map"]["bert.embeddings.position_ids"] = file.name
        listed["metadata"]["total_size"] += 160
        index.write_text(json.dumps(listed))


def tensors_of(folder):
    from safetensors.torch import load_file

    return {name: tensor for file in sorted(folder.glob("*.safetensors")) for name, tensor in load_file(file).items()}


def changed(before, after, names):
    old, new = tensors_of(before), tensors_of(after)
    bytes_of = lambda tensor: (tensor.dtype, tensor.shape, tensor.contiguous().numpy().tobytes())  # noqa: E731
    return [name for name in names if name not in new or bytes_of(old[name]) != bytes_of(new[name])]


def difference(torch, transformers, before, after, loader, field):
    answers = []
    for folder in (before, after):
        model = getattr(transformers, loader).from_pretrained(folder, dtype=torch.float64, local_files_only=True).eval()
        with torch.no_grad():
            answers.append(model(torch.arange(3, 15)[None])[field])
    return (answers[0] - answers[1]).abs().max().item()


def check_compat(report, work, torch, transformers):
    for case, options in (("one file", {}), ("shards", {"max_shard_size": "12KB"})):
        source, out = work / case, work / f"{case} compat"
        save_bert(source, torch, transformers, torch.float64, **options)
        result = pare("rewrite", source, "-o", out, "--passes", "auto", "--form", "compat", "--json", *(["--shard-size", "12KB"] if options else []))
        report.check(f"{case}: rewrite", ended(result, 0, without=["not written"]))
        if result.returncode != 0:
            continue
        report.check(f"{case}: every name", expect(sorted(tensors_of(out)), sorted(tensors_of(source))))
        report.check(f"{case}: unused ones byte for byte", expect(changed(source, out, UNUSED), []))
        report.check(f"{case}: something changed", "" if changed(source, out, tensors_of(source)) else "nothing")
        for loader, field in (("AutoModel", "pooler_output"), ("AutoModel", "last_hidden_state"), ("AutoModelForMaskedLM", "logits"), ("BertForPreTraining", "seq_relationship_logits")):
            apart = difference(torch, transformers, source, out, loader, field)
            report.check(f"{case}: {field} of {loader}", "" if apart < TOLERANCE else f"{apart:.2e} apart")
        certificate = json.loads(result.stdout)
        for side in ("reference", "candidate"):
            report.check(f"{case}: the certificate lists them, {side}", expect([t["name"] for t in certificate[side]["unused_tensors"]], UNUSED))
        report.check(f"{case}: none is lost", expect(certificate["unused_tensors"], {"only_reference": [], "only_candidate": [], "different": []}))
        if options:
            index = json.loads((out / "model.safetensors.index.json").read_text())
            sizes = sum(t.numel() * t.element_size() for t in tensors_of(out).values())
            report.check(f"{case}: the index", expect([sorted(index["weight_map"]), index["metadata"]["total_size"]], [sorted(tensors_of(source)), sizes]))


def check_strict_and_verify(report, work):
    source, out = work / "one file", work / "strict"
    result = pare("rewrite", source, "-o", out, "--passes", "auto")
    report.check("strict names what stays behind", ended(result, 0, ["not written", *POOLER, "--form compat"]))
    certificate = json.loads((out / "certificate.json").read_text())
    report.check("and its certificate", expect(certificate["unused_tensors"], {"only_reference": UNUSED, "only_candidate": [], "different": []}))
    report.check("verify names what one lacks", ended(pare("verify", source, out, "--random", "4"), 0, ["not compared", "only in the reference", *POOLER]))

    from safetensors.torch import load_file, save_file
    other = work / "other pooler"
    shutil.copytree(source, other)
    tensors = load_file(other / "model.safetensors")
    tensors[POOLER[1]][0, 0] = float("nan")  # nobody looks at it, so nobody minds
    save_file(tensors, other / "model.safetensors", {"format": "pt"})
    result = pare("verify", source, other, "--random", "4", "--json")
    found = json.loads(result.stdout)
    report.check("verify names what differs", ended(result, 0) or expect([found["verdict"], found["unused_tensors"]["different"]], ["identical", [POOLER[1]]]))
    result = pare("rewrite", other, "-o", work / "other compat", "--passes", "drop_key_bias", "--form", "compat")
    report.check("what is not finite is copied too", ended(result, 0) or expect(changed(other, work / "other compat", UNUSED), []))


def check_audit(report, work):
    found = json.loads(pare("audit", work / "one file", "--json").stdout)
    unused = sum(tensor["bytes"] for tensor in found["unused_tensors"])
    header = found["file_bytes"] - found["bytes"]["stored"] - unused
    report.check("audit explains the size of the file", "" if 0 < header < 10000 else f"{header} bytes are left over")
    report.check("audit in words", ended(pare("audit", work / "one file"), 0, ["not used by this model", *POOLER]))


def check_tied_copy(report, work, torch, transformers):
    """A head that is tied, and stored again beside the table: a stale copy would be read as a head of its own."""
    from safetensors.torch import load_file, save_file
    source, out = work / "copied", work / "copied compat"
    save_bert(source, torch, transformers, torch.float32)
    tensors = load_file(source / "model.safetensors")
    tensors["cls.predictions.decoder.weight"] = tensors["bert.embeddings.word_embeddings.weight"].clone()
    save_file(tensors, source / "model.safetensors", {"format": "pt"})
    result = pare("rewrite", source, "-o", out, "--passes", "drop_key_bias", "--form", "compat", "--dtype", "bfloat16", "--json")
    report.check("a copy of a tied tensor", ended(result, 0))
    if result.returncode == 0:
        new = tensors_of(out)
        report.check("is a copy of what that became", expect(torch.equal(new["cls.predictions.decoder.weight"], new["bert.embeddings.word_embeddings.weight"]), True))
        report.check("unused ones keep their type", expect(changed(source, out, UNUSED), []))
        listed = {t["name"]: t["copy_of"] for t in json.loads(result.stdout)["candidate"]["unused_tensors"]}
        report.check("and is called one", expect(listed.get("cls.predictions.decoder.weight"), "bert.embeddings.word_embeddings.weight"))
    report.check("strict stores it once, and says so", ended(pare("rewrite", source, "-o", work / "copied strict", "--passes", "drop_key_bias"), 0, ["a second time: cls.predictions.decoder"]))


def check_rxnmapper(report, work):
    source, out = SHARED / "models" / "rxnmapper_albert", work / "rxnmapper"
    if not source.exists():
        report.skip("rxnmapper", f"{source} is not there")
        return
    result = pare("rewrite", source, "-o", out, "--passes", "drop_key_bias", "--form", "compat", "--random", "2")
    names = ["albert.pooler.bias", "albert.pooler.weight", "predictions.decoder.bias", "predictions.decoder.weight"]
    report.check("rxnmapper keeps its pooler and decoder", ended(result, 0) or expect(changed(source, out, names), []))


def save_without_norms(folder, torch, transformers, epsilon, dtype, **options):
    """A GPT-2 whose LayerNorms are constants, stored as the published ones are: the gains make up for the epsilon."""
    config = transformers.GPT2Config(n_embd=16, n_layer=2, n_head=2, n_positions=12, vocab_size=30, layer_norm_epsilon=epsilon, **options)
    model = drawn(transformers.GPT2LMHeadModel(config).double(), torch)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if ".ln_" in name and name.endswith("weight"):
                parameter.mul_(epsilon ** 0.5)
    model = model.to(dtype)
    model.save_pretrained(folder)
    return model.double()


def apart(work, torch, folder, model):
    """How far what pare computes of a folder is from what transformers does of a model, in float64."""
    from safetensors.torch import load_file
    (work / "ids.json").write_text(json.dumps([list(range(2, 12))]))
    result = pare("run", folder, "-o", work / "logits.safetensors", "--tokens", work / "ids.json", "--dtype", "float64", "--force")
    if wrong := ended(result, 0):
        return wrong
    with torch.no_grad():
        theirs = model(torch.arange(2, 12)[None]).logits[0]
    [ours] = [tensor for name, tensor in load_file(work / "logits.safetensors").items() if "logits" in name]
    return ((ours.reshape(theirs.shape).double() - theirs).abs().max() / theirs.abs().max()).item()


def near(found, tolerance=TOLERANCE):
    return found if isinstance(found, str) else "" if found < tolerance else f"{found:.2e} apart"


def check_large_epsilon(report, work, torch, transformers):
    """The gain makes up for it: what is left is a constant times the centred input."""
    folder = work / "no norms"
    model = save_without_norms(folder, torch, transformers, 1e12, torch.float64)
    report.check("an epsilon of 1e12 computes as in transformers", near(apart(work, torch, folder, model)))
    settings = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(settings | {"layer_norm_epsilon": -1e-5}))
    report.check("a negative one does not", ended(pare("audit", folder), 1, ["layer_norm_epsilon is -1e-05", "a finite number, 0 or more"]))


def check_constant_norms(report, work, torch, transformers):
    """Norms that do nothing are folded, and transformers computes the same of the original, and of the compat form."""
    # As they are published, where nothing bounds what the last norms are given; and in float64 with an epsilon that
    # nothing is seen beside there, for all inputs.
    for dtype, epsilon, tolerance, known, verdict in ((torch.float32, 1e12, 1e-6, "on sampled inputs", "within_noise"),
                                                      (torch.float64, 1e28, TOLERANCE, "for all inputs", "proved")):
        for tied in (True, False):
            case = f"{dtype}, {'tied' if tied else 'untied'}"
            folder = work / f"constant {case}"
            model = save_without_norms(folder, torch, transformers, epsilon, dtype, tie_word_embeddings=tied)
            audit = pare("audit", folder, "--json")
            report.check(f"{case}: audit", ended(audit, 0) or expect({k: json.loads(audit.stdout)["constant_norms"][k] for k in ("norms", "constant", "removed")}, {"norms": 5, "constant": 5, "removed": 4 if tied else 5}))
            report.check(f"{case}: audit says it", ended(pare("audit", folder), 0, ["its norms do nothing", "5 of 5 norms do nothing but centre and scale"]) or expect(known in json.loads(audit.stdout)["constant_norms"]["measured"], True))
            out = work / f"folded {case}"
            result = pare("rewrite", folder, "-o", out, "--passes", "fold_constant_norm", "--json")
            report.check(f"{case}: folds", ended(result, 0) or expect(json.loads(result.stdout)["verdict"], verdict))
            if result.returncode:
                continue
            kept = json.loads((out / "config.json").read_text())["architecture"]
            norms = [kept["final_norm"], *(block[part]["norm"] for block in kept["blocks"] for part in ("attention", "mlp"))]
            report.check(f"{case}: the norms are gone", expect([norm is not None for norm in norms], [tied] + [False] * (len(norms) - 1)))
            report.check(f"{case}: and transformers computes the same", near(apart(work, torch, out, model), tolerance))
            result = pare("rewrite", folder, "-o", work / f"compat {case}", "--passes", "fold_constant_norm", "--form", "compat", "--json")
            if not tied:  # the last norm's bias would be the head's
                report.check(f"{case}: compat", ended(result, 2, ["head.bias"]))
                continue
            report.check(f"{case}: compat", ended(result, 0) or expect(json.loads(result.stdout)["verdict"], verdict))
            if result.returncode == 0:
                loaded = transformers.GPT2LMHeadModel.from_pretrained(work / f"compat {case}", dtype=torch.float64)
                gains = {p for name, q in loaded.named_parameters() if ".ln_1.weight" in name or ".ln_2.weight" in name for p in q.flatten().tolist()}
                report.check(f"{case}: gains are what makes up for epsilon", expect(gains, {epsilon ** 0.5}))
                report.check(f"{case}: and as in transformers", near(apart(work, torch, folder, loaded), tolerance))
    untied = pare("rewrite", work / "constant torch.float32, tied", "-o", work / "its own head", "--passes", "fold_constant_norm{head=untie}", "--json")
    report.check("a head of its own makes it grow", ended(untied, 2, ["--allow-growth"]))
    # One rounding of float64 is far less than what these norms do; and an ordinary epsilon is none of this.
    fine = work / "fine"
    save_without_norms(fine, torch, transformers, 1e12, torch.float64)
    report.check("refused where the type sees the variance", ended(pare("rewrite", fine, "-o", work / "x", "--passes", "fold_constant_norm"), 2, ["dwarfs the variance", "a quarter of a rounding"]))
    save_without_norms(work / "usual", torch, transformers, 1e-5, torch.float32)
    report.check("refused of an ordinary norm", ended(pare("rewrite", work / "usual", "-o", work / "x", "--passes", "fold_constant_norm"), 2, ["it is a norm, with an epsilon of 1 or less"]))


def main():
    report = Report("published files")
    torch, _ = report.peers("torch", "safetensors")
    transformers = report.transformers()
    with tempfile.TemporaryDirectory() as folder:
        work = pathlib.Path(folder)
        check_compat(report, work, torch, transformers)
        check_strict_and_verify(report, work)
        check_audit(report, work)
        check_tied_copy(report, work, torch, transformers)
        check_rxnmapper(report, work)
        check_large_epsilon(report, work, torch, transformers)
        check_constant_norms(report, work, torch, transformers)
    report.finish()


if __name__ == "__main__":
    main()
