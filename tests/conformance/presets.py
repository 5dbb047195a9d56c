#!/usr/bin/env python3
"""Every preset of a real model is what its published config.json (in published/) says: exactly the parameters that
Hugging Face counts for it, and the Architecture that pare reads from that file."""

import json
import pathlib
import sys

HERE = pathlib.Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent)]
from configurations import read_all  # noqa: E402  (the folders above are not a package)
from report import ROOT, Report, pare  # noqa: E402

# What no file says and pare does not have: a token of Dinov2 for training alone, the library's class of MPT.
UNSAID = {"dinov2": {"use_mask_token": False}, "mpt": {"architectures": ["MptForCausalLM"]}}
NOT_PUBLISHED = {"skipless-mistral-7b", "skipless-pythia-6.9b"}  # of a paper's table


def parameters_of(transformers, torch, config):
    config = config | UNSAID.get(config["model_type"], {})
    kind = getattr(transformers, config["architectures"][0])
    with torch.device("meta"):
        model = kind(kind.config_class.from_dict(config))
    model.tie_weights()
    return sum(parameter.numel() for parameter in model.parameters())


def difference(ours, read):
    """Where two Architectures differ, without their names."""
    found = []

    def walk(path, a, b):
        if isinstance(a, dict) and isinstance(b, dict):
            for key in sorted(set(a) | set(b)):
                walk(f"{path}.{key}", a.get(key), b.get(key))
        elif isinstance(a, list) and isinstance(b, list) and len(a) == len(b):
            for number, (one, other) in enumerate(zip(a, b)):
                walk(f"{path}[{number}]", one, other)
        elif a != b:
            found.append(f"{path}: {a}, read as {b}")

    walk("", ours | {"name": ""}, read | {"name": ""})
    return "; ".join(found)


def main():
    report = Report("presets")
    transformers = report.transformers()
    [torch] = report.peers("torch")
    published = {path.stem: json.loads(path.read_text()) for path in sorted((HERE / "published").glob("*.json"))}
    presets = {path.stem: json.loads(path.read_text()) for path in (ROOT / "presets").glob("*.json")}
    report.check("every preset has its config.json", "" if set(published) | NOT_PUBLISHED == set(presets) else
                 f"{sorted(set(presets) ^ (set(published) | NOT_PUBLISHED))}")
    answers = read_all(list(published.values()))
    for (name, config), told in zip(published.items(), answers, strict=True):
        theirs = parameters_of(transformers, torch, config)
        result = pare("audit", name, "--json")
        ours = json.loads(result.stdout)["parameters"] if result.returncode == 0 else result.stderr.strip()
        report.check(name, "" if ours == theirs else f"pare counts {ours}, Hugging Face {theirs}")
        report.check(f"{name}, as read", told["refusal"] if "refusal" in told else difference(presets[name], told["architecture"]))
    report.finish()


if __name__ == "__main__":
    main()
