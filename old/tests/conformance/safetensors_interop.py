#!/usr/bin/env python3
"""Our safetensors files against those of the safetensors package: both read both, bit by bit, and copies are stable."""

import json
import pathlib
import subprocess
import sys
import tempfile

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent))
from report import PARE, Report

import safetensors
import safetensors.torch
import torch
import transformers

COPY = PARE.parent / "safetensors_copy"

TORCH_TYPES = """bool uint8 int8 uint16 int16 uint32 int32 uint64 int64 float16 bfloat16 float32 float64 complex64
float8_e4m3fn float8_e5m2 float8_e8m0fnu float8_e4m3fnuz float8_e5m2fnuz float4_e2m1fn_x2""".split()
# Bits per element of those that torch has no type for.
OTHER_TYPES = {"F6_E2M3": 6, "F6_E3M2": 6}


def copy(*words):
    done = subprocess.run([COPY, *map(str, words)], capture_output=True, text=True)
    if done.returncode != 0:
        raise RuntimeError(done.stderr.strip() or f"ended with {done.returncode}")


def bits(tensor):
    return tensor.contiguous().reshape(-1).view(torch.uint8)


def difference(expected, found):
    if expected.keys() != found.keys():
        return f"names {sorted(expected)} became {sorted(found)}"
    for name, tensor in expected.items():
        other = found[name]
        if (tensor.dtype, tensor.shape) != (other.dtype, other.shape) or not torch.equal(bits(tensor), bits(other)):
            return f"{name} changed"
    return ""


def of_type(name):
    """Tensors of one type with any bits, of several shapes, at places that are not aligned."""
    dtype = getattr(torch, name)
    tensors = {"0.before": torch.ones(3, dtype=torch.uint8)}
    for i, shape in enumerate([(5, 7), (1,), (0, 3), (2, 1, 3)]):
        width = shape[-1] * dtype.itemsize
        data = torch.randint(0, 2 if name == "bool" else 256, (*shape[:-1], width), dtype=torch.uint8)
        tensors[f"tensor.{i} \u00e9\"\n"] = data.view(dtype)
    return tensors


def check_types(report, folder):
    for name in TORCH_TYPES:
        tensors = of_type(name)
        theirs, ours, again = (folder / f"{name}.{part}.safetensors" for part in ("theirs", "ours", "again"))
        safetensors.torch.save_file(tensors, theirs, metadata={"format": "pt", "note": "\u00e9 \" \n"})
        copy(theirs, ours)
        copy(ours, again)
        report.check(name, difference(tensors, safetensors.torch.load_file(ours)))
        report.check(f"{name} again", "" if ours.read_bytes() == again.read_bytes() else "the copy of a copy differs")
        with safetensors.safe_open(ours, "pt") as file:
            report.check(f"{name} metadata", "" if file.metadata()["note"] == "\u00e9 \" \n" else "changed")


def check_other_types(report, folder):
    for name, width in OTHER_TYPES.items():
        data = bytes(range(width * 3))
        header = json.dumps({"w": {"dtype": name, "shape": [3, 8], "data_offsets": [0, len(data)]}}).encode()
        theirs, ours = folder / f"{name}.theirs", folder / f"{name}.ours"
        theirs.write_bytes(len(header).to_bytes(8, "little") + header + data)
        copy(theirs, ours)
        [(_, tensor)] = safetensors.deserialize(ours.read_bytes())
        good = (tensor["dtype"], tensor["shape"], bytes(tensor["data"])) == (name, [3, 8], data)
        report.check(name, "" if good else f"read as {tensor}")


def check_no_type_is_forgotten(report):
    """The package lists the types it knows when it meets another."""
    header = json.dumps({"w": {"dtype": "none", "shape": [], "data_offsets": [0, 0]}}).encode()
    try:
        safetensors.deserialize(len(header).to_bytes(8, "little") + header)
        known = ""
    except safetensors.SafetensorError as error:
        known = str(error)
    source = (pathlib.Path(__file__).resolve().parents[2] / "pare/checkpoint/dtype.cpp").read_text()
    names = [word for word in known.split("`")[3::2]]
    missing = [name for name in names if f'"{name}"' not in source]
    report.check("the list of types", f"missing {missing} of {names}" if missing or len(names) < 20 else "")


def check_models(report, folder):
    """A model in shards, written by either side, is the same model to the other."""
    config = transformers.LlamaConfig(
        vocab_size=50, hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=4
    )
    model = transformers.LlamaForCausalLM(config)
    weights = {name: tensor for name, tensor in model.state_dict().items()}
    theirs, ours, again, single = (folder / part for part in ("theirs", "ours", "again", "single"))
    model.save_pretrained(theirs, max_shard_size="20KB")
    for target, source, shard_bytes in ((ours, theirs, 20000), (again, ours, 20000), (single, ours, 10**9)):
        target.mkdir()
        copy(source, target, shard_bytes)
        config.save_pretrained(target)
        loaded = transformers.LlamaForCausalLM.from_pretrained(target)
        report.check(f"model in {target.name}", difference(weights, loaded.state_dict()))
    names = sorted(path.name for path in ours.iterdir())
    report.check("shards", "" if len(names) > 4 else f"only {names}")
    same = all((ours / name).read_bytes() == (again / name).read_bytes() for name in names)
    report.check("shards again", "" if same else "the copy of a copy differs")


def main():
    report = Report("safetensors")
    torch.manual_seed(1)
    transformers.logging.disable_progress_bar()
    with tempfile.TemporaryDirectory() as folder:
        for check in (check_types, check_other_types, check_models):
            try:
                check(report, pathlib.Path(folder))
            except Exception as error:
                report.check(check.__name__, f"{type(error).__name__}: {error}")
    check_no_type_is_forgotten(report)
    report.finish()


main()
