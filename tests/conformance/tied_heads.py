#!/usr/bin/env python3
"""A configuration that ties the head, and a file that holds another one: transformers unties, and pare does the same.

For every family that can tie: run and compared in float64, rewritten in both forms, the compatible one loaded again.
"""

import copy
import importlib
import json
import os
import pathlib
import random
import shutil
import sys
import tempfile

HERE = pathlib.Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent)]
from report import Report, pare  # noqa: E402  (the folders above are not a package)

TOLERANCE = 1e-12
MOST_DRAWS = 24
HEADS = ("decoder", "embed_out", "generator_lm_head", "lm_head", "output_projection", "vocab_projector")


def tied_model(name):
    """The first drawn model of the family whose head is its embedding, or nothing."""
    import random_models
    import reference
    import torch

    family = importlib.import_module(f"families.{name}")
    for index in range(MOST_DRAWS):
        rng = random.Random(f"tied/{name}/{index}")
        config, model_class, *rest = family.draw(rng, index)
        options = rest[0] if rest else {}
        with reference.Float64():
            model = model_class(copy.deepcopy(config), **options)
        head = model.get_output_embeddings()
        if head is not None and head.weight is model.get_input_embeddings().weight:
            random_models.randomise(model, torch.float64, torch.Generator().manual_seed(index))
            return model.to(torch.float64)
    return None


def other_names(model, tensor):
    """Under which names the model knows a tensor that it has once."""
    return [name for name, parameter in model.named_parameters(remove_duplicate=False) if parameter is tensor]


def add_tensors(folder, extra):
    from safetensors.torch import load_file, save_file

    path = folder / "model.safetensors"
    save_file(load_file(path) | extra, path, metadata={"format": "pt"})


def load_and_run(model_class, folder, ids):
    import reference

    model = reference.load(model_class, folder, "eager")
    return reference.run(model, {"input_ids": ids[None]})["logits"][0]


def far(a, b):
    return ((a - b).abs().max() / (a - a.mean(-1, keepdim=True)).abs().max()).item()


def run_pare(folder, tokens, out):
    from safetensors.torch import load_file

    result = pare("run", folder, "-o", out, "--tokens", tokens, "--force")
    if result.returncode != 0:
        return None, f"exit code {result.returncode}: {result.stderr}"
    if "taken as two" not in result.stderr:
        return None, f"no warning in: {result.stderr}"
    return load_file(out)["logits.0"], ""


def check_family(report, name, model, work):
    import torch

    generator = torch.Generator().manual_seed(5)
    head = model.get_output_embeddings()
    model.save_pretrained(work / name, max_shard_size="1GB")
    ids = torch.randint(model.config.get_text_config().vocab_size, (5,), generator=generator)
    tokens = work / "tokens.json"
    tokens.write_text(json.dumps([ids.tolist()]))

    second = [n for n in other_names(model, head.weight) if n.rsplit(".", 2)[-2] in HEADS]
    if not second:
        report.check(f"{name}: the head's name", f"none of {other_names(model, head.weight)} is a head's")
        return
    other = torch.randn(head.weight.shape, generator=generator, dtype=torch.float64)
    cases = {"another head": {second[0]: other}}
    if head.bias is not None:
        names = other_names(model, head.bias)
        own = next((n for n in names if n.endswith("decoder.bias")), None)
        if own and len(names) > 1:  # BERT and its kin tie the bias too, pair by pair
            bias = torch.randn(head.bias.shape, generator=generator, dtype=torch.float64)
            cases["another head and bias"] = {second[0]: other, own: bias}
            cases["another bias"] = {own: bias}
    equal = {second[0]: head.weight.detach().clone()}
    for case, extra in cases.items():
        folder = work / f"{name}-changed"
        shutil.rmtree(folder, ignore_errors=True)
        shutil.copytree(work / name, folder)
        add_tensors(folder, extra)
        theirs = load_and_run(type(model), folder, ids)
        ours, wrong = run_pare(folder, tokens, work / "out.safetensors")
        error = 0 if wrong else far(theirs, ours)
        report.check(f"{name}, {case}", wrong or ("" if error <= 1e-10 else f"logits are off by {error:.1e}"))
        check_rewritten(report, f"{name}, {case}", type(model), folder, ids, theirs, work)

    folder = work / f"{name}-twice"
    shutil.copytree(work / name, folder)
    add_tensors(folder, equal)
    result = pare("run", folder, "-o", work / "out.safetensors", "--tokens", tokens, "--force")
    quiet = "taken as two" not in result.stderr
    report.check(f"{name}, the same head twice", "" if result.returncode == 0 and quiet else f"{result.returncode}: {result.stderr}")


def check_rewritten(report, case, model_class, folder, ids, theirs, work):
    """The final norm goes into the head, which it can only do where the head is its own."""
    for form in ("strict", "compat"):
        out = work / f"rewritten-{form}"
        shutil.rmtree(out, ignore_errors=True)
        result = pare("rewrite", folder, "-o", out, "--passes", "fold_norm_gain", "--form", form, "--threads", "1")
        if result.returncode == 2 and "found: " in result.stderr:  # no norm of this one can be folded
            continue
        wrong = "" if result.returncode == 0 else f"exit code {result.returncode}: {result.stderr}"
        if not wrong and form == "compat":
            error = far(theirs, load_and_run(model_class, out, ids))
            wrong = "" if error <= TOLERANCE else f"transformers computes logits off by {error:.1e}"
            wrong = wrong or ("" if json.loads((out / "config.json").read_text())["tie_word_embeddings"] is False else "still tied")
        report.check(f"{case}, rewritten, {form}", wrong)


def main():
    os.environ["HF_HUB_OFFLINE"] = "1"
    report = Report("tied heads")
    report.transformers()
    tied = []
    with tempfile.TemporaryDirectory() as folder:
        for name in sorted(path.stem for path in (HERE / "families").glob("*.py")):
            model = tied_model(name)
            if model is not None:
                tied.append(name)
                check_family(report, name, model, pathlib.Path(folder))
    report.check("families that tie", "" if len(tied) >= 12 else f"only {tied}")
    report.finish()


if __name__ == "__main__":
    main()
