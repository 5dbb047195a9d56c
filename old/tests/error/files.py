"""Files that are wrong on purpose, for the error tests: safetensors written byte by byte, models with one thing changed."""

import json
import pathlib
import shutil
import struct

SIZES = {"F64": 8, "F32": 4, "F16": 2, "BF16": 2, "I64": 8, "I32": 4, "U8": 1, "BOOL": 1, "F8_E4M3": 1}


def write_raw(path, header, data=b"", length=None):
    """A safetensors file from a header (a value, or raw bytes) and data; `length` overrides the header's length."""
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text) if length is None else length) + text + data)


def write_tensors(path, tensors):
    """tensors: name -> (dtype, shape, bytes)."""
    header, data = {}, b""
    for name in sorted(tensors):
        dtype, shape, content = tensors[name]
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [len(data), len(data) + len(content)]}
        data += content
    write_raw(path, header, data)


def read_tensors(path):
    raw = path.read_bytes()
    length = struct.unpack("<Q", raw[:8])[0]
    header = json.loads(raw[8 : 8 + length])
    header.pop("__metadata__", None)
    data = raw[8 + length :]
    return {n: (t["dtype"], t["shape"], data[slice(*t["data_offsets"])]) for n, t in header.items()}


def integers(shape, values):
    return ("I64", shape, struct.pack(f"<{len(values)}q", *values))


class Broken:
    """A copy of a good model folder, to be changed."""

    def __init__(self, good, folder):
        shutil.copytree(good, folder)
        self.folder = pathlib.Path(folder)
        self.weights = self.folder / "model.safetensors"
        self.config = self.folder / "config.json"

    def set_config(self, change):
        config = json.loads(self.config.read_text())
        change(config)
        self.config.write_text(json.dumps(config))
        return self

    def set_tensors(self, change):
        tensors = read_tensors(self.weights)
        change(tensors)
        write_tensors(self.weights, tensors)
        return self

    def set_header(self, change):
        raw = self.weights.read_bytes()
        length = struct.unpack("<Q", raw[:8])[0]
        header = json.loads(raw[8 : 8 + length])
        change(header)
        write_raw(self.weights, header, raw[8 + length :])
        return self

    def set_bytes(self, change):
        self.weights.write_bytes(change(self.weights.read_bytes()))
        return self
