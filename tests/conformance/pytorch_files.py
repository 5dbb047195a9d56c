#!/usr/bin/env python3
"""Files of torch.save against torch and transformers: every family in each of the forms that torch.save writes, and damaged files."""

import io
import json
import os
import pathlib
import pickle
import random
import resource
import shutil
import struct
import sys
import tempfile
import zipfile

HERE = pathlib.Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent)]
from report import Report, pare

os.environ["HF_HUB_OFFLINE"] = "1"
report = Report("pytorch_files")
transformers = report.transformers()
[torch, random_models, reference, importlib] = report.peers("torch", "random_models", "reference", "importlib")
from compare import compare
from safetensors.torch import load_file, save_file


def as_is(state):
    return dict(state)


def awkward(state):
    """The same numbers as views: transposed, every second element, parts of one storage, parameters."""
    views = {}
    names = list(state)
    for index, (name, tensor) in enumerate(state.items()):
        kind = index % 4 if tensor.dim() == 2 else 4
        if kind == 0:
            views[name] = tensor.t().contiguous().t()
        elif kind == 1:
            wide = torch.full((tensor.shape[0], 2 * tensor.shape[1] + 1), float("nan"), dtype=tensor.dtype)
            wide[:, 1::2] = tensor
            views[name] = wide[:, 1::2]
        elif kind == 2:
            views[name] = torch.nn.Parameter(tensor)
        elif kind == 3:
            stacked = torch.cat([torch.full_like(tensor, float("nan")), tensor])
            views[name] = stacked[tensor.shape[0] :]
        else:
            views[name] = tensor
    return {name: views[name] for name in names}


def sharded(state, folder, **options):
    """Two files and an index, as save_pretrained of older versions wrote them."""
    names = sorted(state)
    parts = [names[: len(names) // 2], names[len(names) // 2 :]]
    index = {}
    for number, part in enumerate(parts):
        file = f"pytorch_model-{number + 1:05}-of-00002.bin"
        torch.save({name: state[name] for name in part}, folder / file, **options)
        index |= {name: file for name in part}
    (folder / "pytorch_model.bin.index.json").write_text(json.dumps({"metadata": {"total_size": 1}, "weight_map": index}))


# What stands in for model.safetensors, and the path that is given.
FORMS = {
    "pytorch_model.bin": lambda state, folder: torch.save(as_is(state), folder / "pytorch_model.bin"),
    "views": lambda state, folder: torch.save(awkward(state), folder / "pytorch_model.bin"),
    "before 1.6": lambda state, folder: torch.save(awkward(state), folder / "pytorch_model.bin", _use_new_zipfile_serialization=False),
    "sharded": sharded,
    "protocol 4, nested": lambda state, folder: torch.save({"epoch": 3, "state_dict": as_is(state)}, folder / "last.pt", pickle_protocol=4),
    "a .pth by its path": lambda state, folder: torch.save({"model": awkward(state), "step": 2**40, "loss": 0.5, "tags": ["a"]}, folder / "best.pth"),
}


def other_forms(model, folder):
    """Copies of the folder, each with its weights in another form."""
    state = {name: tensor.clone() for name, tensor in load_file(folder / "model.safetensors").items()}
    for form, write in FORMS.items():
        copy = folder.with_name(f"{folder.name}-{len(list(folder.parent.iterdir()))}")
        copy.mkdir()
        shutil.copy(folder / "config.json", copy)
        write(state, copy)
        yield form, copy, copy / "best.pth" if "path" in form else copy


def check_family(name):
    family = importlib.import_module(f"families.{name}")
    rng = random.Random(f"pytorch/{name}")
    with tempfile.TemporaryDirectory() as place:
        folder = pathlib.Path(place, "model")
        config, model_class, options = random_models.draw(family, rng, 0, None)
        with reference.Float64():
            model = model_class(config, **options)
        random_models.randomise(model, torch.float32, torch.Generator().manual_seed(rng.getrandbits(32)))
        model.to(torch.float32).save_pretrained(folder)
        generator = torch.Generator().manual_seed(1)
        if hasattr(config, "image_size"):
            inputs = {"pixel_values": torch.randn((2, config.num_channels, config.image_size, config.image_size), generator=generator, dtype=torch.float64)}
        else:
            inputs = {"input_ids": torch.randint(config.get_text_config().vocab_size, (2, 9), generator=generator)}
            inputs["attention_mask"] = torch.ones_like(inputs["input_ids"])
        path = folder.with_suffix(".in.safetensors")
        save_file(inputs, path)
        forms = list(other_forms(model, folder))
        # All forms hold the numbers that transformers wrote, so that one answer of it serves all.
        theirs = reference.run(reference.load(model_class, folder, "eager", **options), inputs)
        wanted = {f"{key}.{row}": tensor for key, batch in theirs.items() if "residual" not in key for row, tensor in enumerate(batch)}
        # The usual form of every family, and of the others two in turn.
        turn = sorted(p.stem for p in (HERE / "families").glob("*.py")).index(name)
        for form, _, given in [forms[0], forms[1 + turn % 5], forms[1 + (turn + 2) % 5]]:
            case = f"{name}, {form}"
            report.check(case, compare(wanted, random_models.run_pare(given, "--inputs", path, ["final"], folder), case))


class Call:
    """What pickles as a call of any function: how such files run code where they are unpickled."""

    def __init__(self, function, *arguments):
        self.function, self.arguments = function, arguments

    def __reduce__(self):
        return self.function, self.arguments


def archive(entries, **options):
    """A zip file as torch.save makes one, of any entries."""
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", **options) as packed:
        for name, content in entries.items():
            packed.writestr(f"archive/{name}", content)
    return file.getvalue()


def saved(value, **options):
    file = io.BytesIO()
    torch.save(value, file, **options)
    return file.getvalue()


def entries_of(content):
    with zipfile.ZipFile(io.BytesIO(content)) as packed:
        return {name.split("/", 1)[1]: packed.read(name) for name in packed.namelist()}


def changed(content, old, new):
    """The same archive with other bytes in its pickle."""
    entries = entries_of(content)
    assert entries["data.pkl"].count(old) >= 1, (old, entries["data.pkl"])
    entries["data.pkl"] = entries["data.pkl"].replace(old, new)
    return archive(entries)


def damaged(good, folder):
    """Name: the bytes of a file that must be refused, and words of the refusal."""
    one = saved({"w": torch.arange(6.0).view(2, 3)})
    entries = entries_of(one)
    mark = folder / "was-run"
    yield "cut in half", good[: len(good) // 2], "no directory at its end"
    yield "cut by a byte", good[:-1], "no directory at its end"
    yield "empty", b"", "no file of torch.save"
    yield "a page of HTML", b"<!DOCTYPE html>" * 10, "no file of torch.save"
    yield "a pointer of git LFS", b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 3\n", "LFS"
    for name, function, arguments in [("posix.system", os.system, (f"touch {mark}",)), ("builtins.eval", eval, (f"open({str(mark)!r}, 'w')",)), ("builtins.getattr", getattr, (0, "real")), ("os._wrap_close", os._wrap_close, ())]:
        if name == "os._wrap_close":
            content = changed(one, b"ctorch._utils\n_rebuild_tensor_v2\n", b"cos\n_wrap_close\n")
        else:
            # torch.save pickles by Python's own pickler: what reads it is the danger.
            content = archive({**entries, "data.pkl": pickle.dumps({"w": Call(function, *arguments)}, protocol=2)})
        yield f"a call of {name}", content, f"{name.split('.')[-1]}', which is no part of a state dict; nothing was run"  # protocol 2 writes the module's name of Python 2
    yield "a call in protocol 4", archive({**entries, "data.pkl": pickle.dumps(Call(os.system, f"touch {mark}"), protocol=4)}), "asks for the Python object 'posix.system'"
    yield "a call in the old format", saved({"w": Call(os.system, f"touch {mark}")}, _use_new_zipfile_serialization=False), "asks for the Python object 'posix.system'"
    yield "a whole module", saved(torch.nn.Linear(2, 2)), "asks for the Python object 'torch.nn.modules.linear.Linear'"
    yield "a numpy scalar", saved({"w": torch.ones(2), "x": __import__("numpy").float64(1)}), "asks for the Python object 'numpy"
    yield "compressed entries", archive(entries, compression=zipfile.ZIP_DEFLATED), "is compressed"
    bomb = {**entries, "data/0": bytes(24) + bytes(50_000_000)}
    yield "a bomb", archive(bomb, compression=zipfile.ZIP_DEFLATED), "is compressed"
    yield "a storage that is too short", archive({**entries, "data/0": entries["data/0"][:-4]}), "has 20 bytes, expected 24"
    yield "a storage that is too long", archive({**entries, "data/0": entries["data/0"] + b"1234"}), "has 28 bytes, expected 24"
    yield "a storage that is not there", archive({name: content for name, content in entries.items() if name != "data/0"}), "is not there"
    yield "a storage elsewhere", changed(one, b"X\x01\x00\x00\x000", b"X\x0b\x00\x00\x00../data.pkl"), "is not there"
    # K\x02K\x03\x86 is the shape (2, 3), K\x03K\x01\x86 its strides.
    yield "strides beyond the storage", changed(one, b"K\x03K\x01\x86", b"K\x04K\x01\x86"), "reaches beyond its storage"
    yield "an offset beyond the storage", changed(one, b"QK\x00", b"QK\x01"), "reaches beyond its storage"
    yield "negative strides", changed(one, b"K\x03K\x01\x86", b"J\xff\xff\xff\xffK\x01\x86"), "not negative"
    yield "sizes that overflow", changed(one, b"K\x02K\x03\x86", b"\x8a\x08\xff\xff\xff\xff\xff\xff\xff\x7fK\x03\x86"), "tensor 'w'"
    yield "one element as 2^50", changed(changed(one, b"K\x03K\x01\x86", b"K\x00K\x00\x86"), b"K\x02K\x03\x86", b"\x8a\x08\x00\x00\x00\x00\x00\x00\x04\x00K\x01\x86"), "lie over each other"
    yield "more strides than sizes", changed(one, b"K\x03K\x01\x86", b"K\x03K\x01K\x01\x87"), "2 sizes and 3 strides"
    yield "a tensor of no type", changed(one, b"ctorch\nFloatStorage\n", b"ctorch.storage\nUntypedStorage\n"), "without a type"
    yield "a quantised storage", changed(one, b"ctorch\nFloatStorage\n", b"ctorch\nQInt8Storage\n"), "asks for the Python object 'torch.QInt8Storage'"
    yield "a tensor that is stored negated", saved({"w": torch._neg_view(torch.ones(2))}), "a tensor with metadata"
    yield "big-endian", archive({**entries, "byteorder": b"big"}), "byte order 'big'"
    yield "two pickles", archive({**entries, "../other/data.pkl": b"."}).replace(b"archive/../other/data.pkl", b"another-one-beside/data.pkl"[2:]), "expected one"
    yield "a program", archive({**entries, "constants.pkl": b""}), "TorchScript"
    yield "another archive", archive({"readme.txt": b"hello"}), "without data.pkl"
    yield "no tensors", saved({"epoch": 3}), "no tensors"
    yield "a list", saved([torch.ones(2)]), "expected a state dict"
    yield "two state dicts", saved({"model": {"w": torch.ones(2)}, "ema": {"w": torch.ones(2)}}), "'model' and 'ema'"
    yield "tensors beside a state dict", saved({"loss": torch.ones(1), "model": {"w": torch.ones(2)}}), "the dict itself and 'model'"
    yield "a number among tensors", saved({"w": torch.ones(2), "n": 3}), "entry 'n' is a number"
    body = entries["data.pkl"]
    tensor = body[body.index(b"ctorch._utils") : -2]  # up to SETITEM and the end
    wide = b"(" + b"K\x01" * 64 + b"t"
    wide = tensor.replace(b"K\x02K\x03\x86", wide).replace(b"K\x03K\x01\x86", wide)  # its function is 2 in the memo, its arguments 12, it is 13
    yield "a tensor again and again", archive({**entries, "data.pkl": b"\x80\x02](" + wide + b"h\x02h\x0cR" * 200_000 + b"e."}), "can spell"
    parameter = wide + b"ctorch._utils\n_rebuild_parameter\nq\x0e(h\x0d\x89Ntq\x0f"
    yield "a parameter again and again", archive({**entries, "data.pkl": b"\x80\x02](" + parameter + b"h\x0eh\x0fR" * 200_000 + b"e."}), "can spell"
    yield "a name twice", archive({**entries, "data.pkl": b"\x80\x02}(X\x01\x00\x00\x00w" + tensor + b"r\x50\x00\x00\x00X\x01\x00\x00\x00wj\x50\x00\x00\x00u."}), "tensor 'w' is there twice"
    yield "a pickle without an end", archive({**entries, "data.pkl": body[:-1]}), "damaged pickle"
    yield "a pickle of nothing", archive({**entries, "data.pkl": b"."}), "damaged pickle"
    yield "a text that is too long", archive({**entries, "data.pkl": b"\x80\x02X\xff\xff\xff\xffabc."}), "more bytes are needed"
    yield "a memo of 2^32", archive({**entries, "data.pkl": b"\x80\x02}r\xff\xff\xff\xff."}), "of the memo"
    yield "marks without end", archive({**entries, "data.pkl": b"\x80\x02" + b"(" * 1_000_000}), "damaged pickle"
    yield "tuples in tuples", archive({**entries, "data.pkl": b"\x80\x02)" + b"\x85" * 3_000_000 + b"."}), "more than"
    end64 = one.rindex(b"PK\x06\x06")  # torch.save always writes one
    yield "more entries than there are, in 64 bits", one[: end64 + 24] + 2 * struct.pack("<Q", 2**40) + one[end64 + 40 :], "too few for 1099511627776 entries"
    yield "a directory beyond the end, in 64 bits", one[: end64 + 48] + struct.pack("<Q", 2**63) + one[end64 + 56 :], "beyond its end"
    one = archive(entries)  # Python's own writes none
    end = one.rindex(b"PK\x05\x06")
    yield "more entries than there are", one[: end + 8] + b"\xff\xff\xff\xff" + one[end + 12 :], "entries"
    yield "a directory beyond the end", one[: end + 16] + b"\xff\xff\xff\x7f" + one[end + 20 :], "beyond its end"
    central = one.index(b"PK\x01\x02")
    yield "an entry larger than the file", one[: central + 20] + struct.pack("<II", 10**9, 10**9) + one[central + 28 :], "beyond the data"
    yield "an entry beyond the file", one[: central + 42] + struct.pack("<I", 10**9) + one[central + 46 :], "beyond the data"


def check_damaged(folder):
    """Nothing is run, and no size in a file is believed before it is checked: those above ask for terabytes."""
    config = transformers.GPT2Config(vocab_size=11, n_positions=8, n_embd=8, n_head=2, n_layer=1)
    model = transformers.GPT2LMHeadModel(config)
    model.save_pretrained(folder / "good")
    state = load_file(folder / "good" / "model.safetensors")
    (folder / "good" / "model.safetensors").unlink()
    for name, content, words in damaged(saved(state), folder):
        path = folder / "good" / "pytorch_model.bin"
        path.write_bytes(content)
        result = pare("audit", folder / "good")
        said = result.stdout + result.stderr
        wrong = result.returncode != 1 or words not in said or "Traceback" in said
        report.check(name, f"ended with {result.returncode}: {said.strip()[-300:]!r}, expected {words!r}" if wrong else "")
        report.check(f"{name}: nothing was run", "it ran" if (folder / "was-run").exists() else "")
    most = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 1024
    report.check("memory of the damaged ones", "" if most < 1500 else f"one of them took {most:.0f} MB")
    print(f"  no damaged file took more than {most:.0f} MB", flush=True)
    (folder / "good" / "pytorch_model.bin").unlink()
    for file in ["../x.bin", "/etc/passwd", "a/../b.bin", "x.safetensors"]:
        (folder / "good" / "pytorch_model.bin.index.json").write_text(json.dumps({"weight_map": {"wte.weight": file}}))
        result = pare("audit", folder / "good")
        report.check(f"an index with {file}", "" if result.returncode == 1 and "expected the name of a .bin file" in result.stderr else result.stderr)


def check_choice(folder):
    """Which file is read: safetensors before PyTorch, as in transformers; by its path the one that is named."""
    config = transformers.GPT2Config(vocab_size=11, n_positions=8, n_embd=8, n_head=2, n_layer=1)
    place = folder / "both"
    transformers.GPT2LMHeadModel(config).save_pretrained(place)
    state = load_file(place / "model.safetensors")
    other = {name: tensor + 1 for name, tensor in state.items()}
    torch.save(other, place / "pytorch_model.bin")
    torch.save(other, place / "optimizer.pt")
    torch.save(other, place / "training_args.bin")
    plain = folder / "plain"
    plain.mkdir()
    shutil.copy(place / "config.json", plain)
    save_file(state, plain / "model.safetensors")
    report.check("safetensors win", "" if "verdict: identical" in pare("verify", plain, place).stdout else "another file was read")
    named = pare("verify", plain, place / "pytorch_model.bin")
    report.check("the file that is named wins", "" if named.returncode == 3 else named.stdout + named.stderr)
    for unit in "model.safetensors", "pytorch_model.bin":
        (place / unit).unlink()
    torch.save(state, place / "a.pt")
    report.check("the only .pt, beside what training keeps", "" if "verdict: identical" in pare("verify", plain, place).stdout else "not read")
    torch.save(state, place / "b.pth")
    several = pare("audit", place)
    report.check("several of them", "" if several.returncode == 1 and "'a.pt' and 'b.pth'" in several.stderr else several.stderr)
    (plain / "lost").mkdir()
    torch.save(state, plain / "lost" / "x.bin")
    lost = pare("audit", plain / "lost" / "x.bin")
    report.check("without config.json", "" if lost.returncode == 1 and "without a config.json beside it" in lost.stderr else lost.stderr)
    torch.save({"state_dict": state}, place / "c.pt")
    nested = pare("verify", plain, place / "c.pt")
    report.check("which dict is said", "" if "verdict: identical" in nested.stdout and "those in 'state_dict'" in nested.stderr else nested.stderr)
    # What is written of it is safetensors, and what the model does not use goes along.
    smaller = folder / "smaller"
    written = pare("rewrite", place / "a.pt", "-o", smaller, "--passes", "fold_norm_gain")
    report.check("rewritten", "" if written.returncode == 0 and (smaller / "model.safetensors").exists() and not list(smaller.glob("*.pt")) else written.stderr)


def main():
    for name in sorted(path.stem for path in (HERE / "families").glob("*.py")):
        check_family(name)
    with tempfile.TemporaryDirectory() as place:
        check_damaged(pathlib.Path(place))
        check_choice(pathlib.Path(place))
    report.finish()


if __name__ == "__main__":
    main()
