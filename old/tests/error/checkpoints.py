#!/usr/bin/env python3
"""Checkpoints are untrusted: every way to be broken ends with exit code 1 and names the culprit. Files are made here."""

import json
import pathlib
import struct
import sys
import tempfile

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent))
from files import Broken, integers, write_raw, write_tensors
from report import Report, pare
from wrong_use import ARCHITECTURE, problem

UP = "blocks.0.mlp.up.weight"


def entry(key, value):
    """Changes one field of the header's entry of UP."""
    return lambda b: b.set_header(lambda header: header[UP].update({key: value}))


def move_back(header):
    """UP begins 4 bytes too early, so it overlaps the tensor before it."""
    begin, end = header[UP]["data_offsets"]
    header[UP]["data_offsets"] = [begin - 4, end - 4]


def nan_at(value):
    def change(tensors):
        dtype, shape, data = tensors[UP]
        tensors[UP] = (dtype, shape, data[:8] + struct.pack("<f", value) + data[12:])

    return lambda b: b.set_tensors(change)


def duplicate(raw):
    length = struct.unpack("<Q", raw[:8])[0]
    header = raw[8 : 8 + length].rstrip()
    first = json.dumps(json.loads(header)[UP])
    header = header[:-1] + f', "{UP}": {first}}}'.encode()
    return struct.pack("<Q", len(header)) + header + raw[8 + length :]


def sharded(weight_map):
    def change(b):
        b.weights.unlink()
        (b.folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))
        return b

    return change


def config(**changes):
    return lambda b: b.set_config(lambda c: c.update(changes))


def architecture(change):
    return lambda b: b.set_config(lambda c: change(c["architecture"]))


def llama(**changes):
    """A config.json of the llama family with something impossible in it."""
    good = {"model_type": "llama", "architectures": ["LlamaForCausalLM"], "hidden_size": 8, "intermediate_size": 12,
            "num_attention_heads": 2, "num_key_value_heads": 1, "num_hidden_layers": 2, "vocab_size": 16,
            "max_position_embeddings": 12, "rms_norm_eps": 1e-5, "tie_word_embeddings": False}
    return lambda b: (b.config.write_text(json.dumps({**good, **changes})), b)[1]


BROKEN = [  # what is done to a good model, words of the message
    ("truncated data", lambda b: b.set_bytes(lambda raw: raw[:-100]), ["model.safetensors", "incomplete download"]),
    ("truncated header", lambda b: b.set_bytes(lambda raw: raw[:40]), ["model.safetensors"]),
    ("seven bytes", lambda b: b.set_bytes(lambda raw: raw[:7]), ["model.safetensors"]),
    ("empty file", lambda b: b.set_bytes(lambda raw: b""), ["model.safetensors"]),
    ("header of 2^63 bytes", lambda b: b.set_bytes(lambda raw: struct.pack("<Q", 2**63) + raw[8:]), ["model.safetensors"]),
    ("bytes after the data", lambda b: b.set_bytes(lambda raw: raw + b"12345678"), ["8 bytes after"]),
    ("header is no JSON", lambda b: (write_raw(b.weights, b"{not json"), b)[1], ["model.safetensors"]),
    ("header is a list", lambda b: (write_raw(b.weights, b"[1]"), b)[1], ["model.safetensors"]),
    ("header is deep", lambda b: (write_raw(b.weights, b'{"a":' * 50000), b)[1], ["model.safetensors"]),
    ("reversed offsets", entry("data_offsets", [400, 16]), [UP, "reversed"]),
    ("negative offsets", entry("data_offsets", [-4, 380]), [UP]),
    ("huge offsets", entry("data_offsets", [2**62, 2**62 + 384]), [UP]),
    ("offsets past 2^63", entry("data_offsets", [2**64 - 385, 2**64 - 1]), [UP, "2^63"]),
    ("offsets beyond 64 bits", entry("data_offsets", [10**30, 10**31]), [UP]),
    ("offsets of strings", entry("data_offsets", ["0", "384"]), [UP]),
    ("overlap", lambda b: b.set_header(move_back), [UP, "inside tensor"]),
    ("gap", lambda b: b.set_header(lambda h: h.pop(UP)), ["belong to no tensor"]),
    ("shape overflow", entry("shape", [2**40, 2**40]), [UP]),
    ("negative shape", entry("shape", [-12, 8]), [UP]),
    ("shape against dtype", entry("dtype", "F16"), [UP, "F16"]),
    ("shape against offsets", entry("shape", [12, 9]), [UP]),
    ("unknown dtype", entry("dtype", "F31"), [UP, "F31"]),
    ("no dtype", lambda b: b.set_header(lambda h: h[UP].pop("dtype")), [UP, "dtype"]),
    ("duplicate name", lambda b: b.set_bytes(duplicate), [UP]),
    ("NaN", nan_at(float("nan")), [UP]),
    ("infinity", nan_at(float("inf")), [UP]),
    ("missing tensors", lambda b: b.set_tensors(lambda t: (t.pop(UP), t.pop("head.weight"))), [UP, "head.weight"]),
    ("unexpected tensor", lambda b: b.set_tensors(lambda t: t.update(extra=t[UP])), ["extra"]),
    ("wrong shape", lambda b: b.set_tensors(lambda t: t.update({UP: (t[UP][0], [8, 12], t[UP][2])})), [UP, "8, 12"]),
    ("a dtype we cannot compute with", lambda b: b.set_tensors(lambda t: t.update({UP: ("F8_E4M3", [12, 8], bytes(96))})),
     [UP, "F8_E4M3"]),
    ("missing shard", sharded({UP: "model-00001-of-00002.safetensors"}), ["model-00001-of-00002.safetensors"]),
    ("shard path with ..", sharded({UP: "../model.safetensors"}), ["../model.safetensors"]),
    ("absolute shard path", sharded({UP: "/etc/passwd"}), ["/etc/passwd"]),
    ("shard that is a number", sharded({UP: 3}), [UP]),
    ("no weights", lambda b: (b.weights.unlink(), b)[1], ["model.safetensors"]),
    ("pickled weights", lambda b: (b.weights.rename(b.folder / "pytorch_model.bin"), b)[1], ["pytorch_model.bin"]),
    ("no config", lambda b: (b.config.unlink(), b)[1], ["config.json"]),
    ("config is no JSON", lambda b: (b.config.write_text("model: gpt2"), b)[1], ["config.json"]),
    ("config is empty", lambda b: (b.config.write_text(""), b)[1], ["config.json"]),
    ("config is a list", lambda b: (b.config.write_text("[]"), b)[1], ["config.json"]),
    ("config is deep", lambda b: (b.config.write_text("[" * 100000), b)[1], ["config.json"]),
    ("config is not UTF-8", lambda b: (b.config.write_bytes(b'{"model_type": "\xff\xfe"}'), b)[1], ["config.json"]),
    ("config without a family", lambda b: b.set_config(lambda c: c.pop("model_type")), ["model_type"]),
    ("unknown family", config(model_type="lama"), ["lama", "llama"]),
    ("future format", config(pare_format=2), ["pare_format", "2"]),
    ("0 heads", architecture(lambda a: a["blocks"][0]["attention"].update(heads=0)), ["attention.heads"]),
    ("a billion layers", architecture(lambda a: a["blocks"][0].update(repeat=10**9)), ["repeat"]),
    ("text for a number", architecture(lambda a: a.update(width="8")), ["width"]),
    ("llama with 0 heads", llama(num_attention_heads=0), ["num_attention_heads"]),
    ("llama with a billion layers", llama(num_hidden_layers=10**9), ["num_hidden_layers"]),
    ("llama with text for a number", llama(hidden_size="8"), ["hidden_size"]),
    ("llama with two problems", llama(vocab_size=-1, num_key_value_heads=0), ["vocab_size", "num_key_value_heads"]),
    ("llama with an unknown activation", llama(hidden_act="swoosh"), ["hidden_act", "swoosh"]),
    ("llama that is quantised", llama(quantization_config={"quant_method": "gptq"}), ["quant"]),
]

IMAGE = {"task": "encoder", "width": 8, "context": 4, "embedding": {"patch": {"size": 2, "image": 4, "channels": 1}},
         "blocks": [{"attention": {"heads": 2, "head_width": 4, "mask": "full"}}]}
IDS = integers([2, 3], [1, 2, 3, 4, 5, 6])
INPUTS = [  # tensors of the --inputs file, words
    ({"input_id": IDS}, ["'input_id'", "input_ids"]),
    ({"attention_mask": IDS}, ["'input_ids' is missing"]),
    ({"input_ids": integers([2, 3], [1, 2, 3, 4, 5, 16])}, ["sequence 1, position 2", "16"]),
    ({"input_ids": ("F32", [2, 3], bytes(24))}, ["input_ids", "F32"]),
    ({"input_ids": integers([6], [1, 2, 3, 4, 5, 6])}, ["input_ids", "[6]"]),
    ({"input_ids": integers([0, 3], [])}, ["input_ids", "empty"]),
    ({"input_ids": IDS, "attention_mask": integers([2, 2], [1, 1, 1, 1])}, ["attention_mask", "2, 2"]),
    ({"input_ids": IDS, "attention_mask": integers([2, 3], [1, 1, 1, 1, 0, 1])}, ["attention_mask", "sequence 1"]),
    ({"input_ids": IDS, "attention_mask": integers([2, 3], [1, 1, 1, 0, 0, 0])}, ["attention_mask", "sequence 1"]),
    ({"input_ids": IDS, "attention_mask": integers([2, 3], [1, 1, 1, 2, 1, 1])}, ["attention_mask", "2"]),
    ({"input_ids": IDS, "position_ids": integers([2, 3], [0, 1, 2, 0, 1, 12])}, ["position_ids", "12"]),
    ({"input_ids": integers([1, 13], [1] * 13)}, ["13 tokens", "12"]),
    ({"input_ids": IDS, "token_type_ids": integers([2, 3], [0] * 6)}, ["'token_type_ids'", "no token types"]),
    ({"input_ids": IDS, "pixel_values": ("F32", [1], bytes(4))}, ["'pixel_values'", "reads tokens"]),
]


def main():
    report = Report("checkpoints")
    with tempfile.TemporaryDirectory() as folder:
        work = pathlib.Path(folder)
        (work / "good.json").write_text(json.dumps(ARCHITECTURE))
        (work / "ids.json").write_text("[[1, 2, 3]]")
        report.check("init", problem(pare("init", "good.json", "-o", "good", cwd=work), [], (0,)))
        unchanged = Broken(work / "good", work / "rewritten").set_tensors(lambda tensors: None)
        result = pare("run", unchanged.folder, "-o", "out0", "--tokens", "ids.json", cwd=work)
        report.check("the model as it is, rewritten here", problem(result, [], (0,)))

        for number, (case, breaks, words) in enumerate(BROKEN):
            broken = breaks(Broken(work / "good", work / f"broken{number}"))
            result = pare("run", broken.folder, "-o", "out", "--tokens", "ids.json", cwd=work, timeout=60)
            report.check(case, problem(result, words))
        for tensors, words in INPUTS:
            write_tensors(work / "inputs.safetensors", tensors)
            result = pare("run", "good", "-o", "out", "--inputs", "inputs.safetensors", cwd=work, timeout=60)
            report.check(f"inputs {list(tensors)} {words}", problem(result, words))
        (work / "image.json").write_text(json.dumps(IMAGE))
        report.check("init of an image model", problem(pare("init", "image.json", "-o", "image", cwd=work), [], (0,)))
        write_tensors(work / "inputs.safetensors", {"pixel_values": ("F32", [1, 1, 4, 4], bytes(64)), "input_ids": IDS})
        result = pare("run", "image", "-o", "out", "--inputs", "inputs.safetensors", cwd=work)
        report.check("tokens for an image model", problem(result, ["'input_ids'", "nothing but pixel_values"]))
        report.check("no output of any failure", "out exists" if (work / "out").exists() else "")
    report.finish()


if __name__ == "__main__":
    main()
