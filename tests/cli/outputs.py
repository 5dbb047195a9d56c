#!/usr/bin/env python3
"""What an output may replace, and what it takes along: nothing that a person put there is lost, nothing goes unsaid."""

import hashlib
import json
import os
import pathlib
import shutil
import socket
import sys
import tempfile

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent))
from report import Report, expect, pare

BIAS = {"query": True, "key": True, "value": True, "output": True}
ARCHITECTURE = {
    "width": 8, "vocab": 20, "context": 8, "embedding": {"position": "learned"}, "head": {"tied": True},
    "blocks": [{"repeat": 2, "attention": {"heads": 2, "head_width": 4, "bias": BIAS}, "mlp": {"width": 12, "activation": "gelu"}}],
}
QUICK = ["--passes", "drop_key_bias", "--no-verify", "--quiet"]


def ended(result, code=0, words=(), never=(".partial-",)):
    text = result.stdout + result.stderr
    if result.returncode != code:
        return f"exit code {result.returncode}, expected {code}: {text.strip()[-400:]}"
    missing, there = [word for word in words if word not in text], [word for word in never if word in text]
    return f"no {missing} in: {text[-800:]}" if missing else f"{there} in: {text[-800:]}" if there else ""


def tree(folder):
    """Every file below a folder with its bytes, every link with where it points."""
    return {str(path.relative_to(folder)): os.readlink(path) if path.is_symlink() else path.read_bytes()
            for path in sorted(folder.rglob("*")) if path.is_symlink() or path.is_file()}


def put(folder, files):
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)


class Place:
    """A folder of its own with a model in it."""

    def __init__(self, report, work, name):
        self.report, self.path = report, work / name
        self.path.mkdir()
        shutil.copytree(work / "model", self.path / "model")

    def keeps(self, case, target, words, command=None):
        """--force is refused with these words, and the target stays as it was."""
        kept = target if isinstance(target, pathlib.Path) else self.path / target
        before = tree(self.path)
        commands = [command] if command else [["rewrite", "model", "-o", target, *QUICK, "--force"],
                                              ["init", "../model.json", "-o", target, "--force"]]
        for arguments in commands:
            wrong = ended(pare(*arguments, cwd=self.path), 1, words)
            self.report.check(f"{case}: {arguments[0]}", wrong or ("" if tree(self.path) == before else f"{kept} changed"))

    def rewrite(self, target, *flags, passes=QUICK):
        return pare("rewrite", "model", "-o", target, *passes, *flags, cwd=self.path)

    def replaces(self, case, target):
        self.report.check(case, ended(self.rewrite(target, "--force")))


def check_kept(report, work):
    place = Place(report, work, "kept")
    put(place.path, {"home/project/thesis.txt": "years of work", "home/.profile": "x"})
    place.keeps("a folder of somebody's", "home", ["'home' is not replaced", "no model folder", "'.profile', 'project/'"])
    put(place.path, {f"many/{number:02}.txt": "" for number in range(13)})
    place.keeps("many files", "many", ["'09.txt' and 3 more"])
    shutil.copytree(place.path / "model", place.path / "other")
    for name in ("notes.md", "optimizer.pt", "training_args.bin", ".git/HEAD", "pytorch_model.bin", "sub/model.safetensors",
                 "README.md", "adapter_config.json", "extra.safetensors"):
        put(place.path / "other", {name: "mine"})
        shown = name.split("/")[0] + "/" * ("/" in name)
        place.keeps(f"a model with {name}", "other", [f"In the way: '{shown}'."])
        (place.path / "other" / name).unlink()
        if "/" in name:
            (place.path / "other" / name).parent.rmdir()
    (place.path / "other" / "tokenizer.json").mkdir()
    place.keeps("a folder with a companion's name", "other", ["'tokenizer.json/'"])
    (place.path / "other" / "tokenizer.json").rmdir()
    os.symlink("../home", place.path / "other" / "linked")
    place.keeps("a model with a link to a folder", "other", ["'linked'"])
    (place.path / "other" / "linked").unlink()
    put(place.path / "other", {"certificate.json": '{"of": "birth"}'})
    place.keeps("somebody's certificate", "other", ["'certificate.json'"])
    (place.path / "other" / "certificate.json").unlink()
    place.replaces("without all that it goes", "other")
    put(place.path, {"looks/config.json": '{"window": "large"}', "looks/model.safetensors": "?"})
    place.keeps("what only looks like a model", "looks", ["no model folder", "'config.json', 'model.safetensors'"])
    put(place.path, {"half/config.json": '{"model_type": "llama"}', "half/tokenizer.json": "{}"})
    place.keeps("a configuration without weights", "half", ["no model folder", "'config.json', 'tokenizer.json'"])
    shutil.copytree(place.path / "model", place.path / "text")
    put(place.path, {"text/model-00001-of-00002.safetensors": "notes"})
    place.keeps("weights that are none", "text", ["'model-00001-of-00002.safetensors'"])
    os.symlink("model", place.path / "link")
    os.symlink("nowhere", place.path / "broken")
    os.symlink("text", place.path / "link-to-text")
    place.keeps("a link to the model", "link", ["link"], ["rewrite", "model", "-o", "link", *QUICK, "--force"])
    place.keeps("a link to another", "link-to-text", ["'link-to-text' is a link"])
    place.keeps("a link to nothing", "broken", ["'broken' is a link"])
    put(place.path, {"file": "text"})
    place.keeps("a file", "file", ["'file' is a file"])
    for odd in (".", "..", "/", "model/.."):
        place.keeps(f"-o {odd}", odd, [], ["rewrite", "model", "-o", odd, *QUICK, "--force"])
    for command in (["rewrite", "model", *QUICK], ["init", "../model.json"], ["run", "model", "--tokens", "../ids.json"]):
        result = pare(*command, "-o", "-", cwd=place.path)
        report.check(f"{command[0]} -o -", ended(result, 1, ["'-'", "stdout"]) or expect((place.path / "-").exists(), False))
    report.check("./- is a name", ended(place.rewrite("./-")) or ended(place.rewrite("./-", "--force")))


def check_replaced(report, work):
    place = Place(report, work, "replaced")
    (place.path / "out").mkdir()
    report.check("an empty folder needs --force", ended(place.rewrite("out"), 1, ["'out' exists", "--force"]))
    place.replaces("and is replaced with it", "out")
    place.replaces("pare's own", "out")
    report.check("pare's own by init", ended(pare("init", "../model.json", "-o", "out", "--force", "--shard-size", "1KB", cwd=place.path)))
    put(place.path / "out", {name: "{}" for name in ("tokenizer.json", "tokenizer_config.json", "generation_config.json",
                                                    "special_tokens_map.json", "merges.txt", "chat_template.jinja")})
    place.replaces("shards and what transformers writes", "out/")
    # What pare copied may go, whatever it is, as long as it is what was copied.
    put(place.path / "model", {"notes.md": "on the source", "deep/er/still.txt": "x", "LICENSE": "free", "tokenizer.json": "{}"})
    place.replaces("with copies", "out")
    place.replaces("copies again", "out")
    for name in ("notes.md", "deep/er/still.txt", "tokenizer.json"):
        before = (place.path / "out" / name).read_text()
        (place.path / "out" / name).write_text("edited")
        place.keeps(f"{name} edited", "out", [f"'{name}' (changed since pare wrote it)"])
        (place.path / "out" / name).write_text(before)
    put(place.path / "out", {"deep/mine.txt": "x"})
    place.keeps("a file among copies", "out", ["In the way: 'deep/mine.txt'."])
    (place.path / "out" / "deep" / "mine.txt").unlink()
    place.replaces("as copied again", "out")


def check_input(report, work):
    """Nothing is written onto, around or into what is read, however it is spelled."""
    place = Place(report, work, "input")
    (place.path / "elsewhere" / "below").mkdir(parents=True)
    os.symlink("model", place.path / "alias")
    os.symlink("..", place.path / "up")
    for target in ("model", "./model/", "up/input/model", "model/sub", "alias/sub", "model/../model/sub", "up/input/model/sub"):
        words = ["lies in 'model'"] if target.endswith("sub") else ["is 'model' itself"]
        for flags in ([], ["--force"]):
            place.keeps(f"onto {target} {flags}", target, words, ["rewrite", "model", "-o", target, *QUICK, *flags])
    place.keeps("through a link", "model", ["is 'alias' itself"], ["rewrite", "alias", "-o", "model", *QUICK, "--force"])
    (place.path / "linking").mkdir()
    for name in ("config.json", "model.safetensors"):
        os.symlink(f"../model/{name}", place.path / "linking" / name)
    place.keeps("what it links to", "model", ["holds a file of it"], ["rewrite", "linking", "-o", "model", *QUICK, "--force"])
    run = ["run", "model", "--tokens", "ids.json", "--force", "-o"]
    put(place.path, {"ids.json": "[[1, 2, 3]]", "thesis.txt": "years of work", "empty.txt": ""})
    place.keeps("run onto a text", "thesis.txt", ["'thesis.txt' is not replaced", "safetensors"], [*run, "thesis.txt"])
    place.keeps("run onto its weights", "model", ["lies in 'model'"], [*run, "model/model.safetensors"])
    place.keeps("run onto its tokens", "ids.json", ["is 'ids.json' itself"], [*run, "ids.json"])
    place.keeps("run onto a folder", "model", ["is a folder"], [*run, "elsewhere"])
    os.mkfifo(place.path / "pipe")
    report.check("run onto a pipe", ended(pare(*run, "pipe", cwd=place.path), 1, ["no regular file"]))
    for target in ("results.safetensors", "results.safetensors", "empty.txt"):
        report.check(f"run onto {target}", ended(pare(*run, target, cwd=place.path)))


COPIED = {
    "tokenizer.json": "{}", "tok512.bin": "a tokenizer", "LICENSE": "free", "README.md": "# model", "processor_config.json": "{}", "chat_template.jinja": "{{ x }}",
    "config_sentence_transformers.json": "{}", "sentence_bert_config.json": "{}", ".gitattributes": "*.bin lfs",
    "assets/logo.svg": "<svg/>", "assets/more/deep.txt": "x", "1_Pooling/config.json": "{}", "2_Dense/config.json": "{}",
    "2_Dense/model.safetensors": "a dense layer", "2_Dense/pytorch_model.bin": "the same", "original/params.json": "{}",
    "modules.json": json.dumps([{"idx": 0, "path": ""}, {"idx": 1, "path": "1_Pooling"}, {"idx": 2, "path": "2_Dense"}]),
}
LEFT = {
    "training state": ["optimizer.pt", "rng_state_0.pth", "scheduler.pt", "trainer_state.json", "training_args.bin"],
    "named like weights": ["flax_model.msgpack", "model.fp16.safetensors", "onnx/model.onnx", "onnx/model.onnx_data",
                                        "original/consolidated.00.pth", "pytorch_model.bin", "pytorch_model.bin.index.json", "small.GGUF", "tf_model.h5"],
    "a model of its own": ["3_Other/", "checkpoint-500/"],
    "hidden": [".cache/", ".env", ".git/"],
    "a link to a folder": ["linked"],
    "no regular file": ["nowhere", "pipe", "socket"],
}


def check_companions(report, work):
    place = Place(report, work, "companions")
    model = place.path / "model"
    put(model, COPIED)
    put(model, {name: "x" for names in LEFT.values() for name in names if not name.endswith("/") and name not in ("linked", "nowhere", "pipe", "socket")})
    put(model, {"checkpoint-500/config.json": "{}", "checkpoint-500/model.safetensors": "x", "3_Other/config.json": "{}",
                "3_Other/model.bin": "x", ".git/HEAD": "x", ".cache/x": "x"})
    put(place.path, {"blob": "from elsewhere", "folder/x": "x"})
    os.symlink("../blob", model / "vocab.txt")
    os.symlink("../folder", model / "linked")
    os.symlink("missing", model / "nowhere")
    os.mkfifo(model / "pipe")
    with socket.socket(socket.AF_UNIX) as listener:
        here = os.getcwd()
        os.chdir(model)  # a socket's path may not be long
        listener.bind("socket")
        os.chdir(here)
        result = place.rewrite("out", "--follow-links")
    report.check("rewrite", ended(result, 0, ["vocab.txt leads out of the model's folder"]))
    wanted = {name: text.encode() for name, text in COPIED.items()} | {"vocab.txt": b"from elsewhere"}
    found = tree(place.path / "out")
    certificate = json.loads(found.pop("certificate.json"))
    report.check("its own", expect([name in found for name in ("config.json", "model.safetensors")], [True, True]))
    found.pop("config.json"), found.pop("model.safetensors")
    report.check("all that belongs to the model is copied, and nothing else", expect(found, wanted))
    report.check("links became files", expect([p.name for p in (place.path / "out").rglob("*") if p.is_symlink()], []))
    report.check("the certificate names the copies", expect(
        certificate["companions"], {name: hashlib.sha256(text).hexdigest() for name, text in sorted(wanted.items())}))
    lines = [line for line in result.stderr.splitlines() if "not copied" in line]
    for why, names in LEFT.items():
        [line] = [line for line in lines if f"not copied: {why}" in line] or [""]
        report.check(f"named: {why}", expect(sorted(line.removeprefix("warning: ").split(" w")[0].split(", ")), sorted(names)))
    report.check("nothing is named twice", expect(len(lines), len(LEFT)))
    shutil.rmtree(place.path / "out")
    put(model, {f"many/{number:03}.bin": "x" for number in range(30)})
    report.check("many are counted", ended(place.rewrite("out"), 0, [" and 29 more were not copied"]))


def check_unreadable(report, work):
    place = Place(report, work, "unreadable")
    put(place.path / "model", {"a/b.txt": "x"})
    deep = place.path / "model" / "/".join(["d"] * 40)
    deep.mkdir(parents=True)
    report.check("nested too deep", ended(place.rewrite("out"), 1, ["'model'", "16 deep"]))
    shutil.rmtree(place.path / "model" / "d")
    (place.path / "model" / "many").mkdir()
    for number in range(20_001):
        (place.path / "model" / "many" / f"{number}").touch()
    report.check("too many", ended(place.rewrite("out"), 1, ["'model'", "20,000 files"]))
    shutil.rmtree(place.path / "model" / "many")
    put(place.path / "model", {"modules.json": '[{"path": "../../etc"}, {"path": 3}, 5, {"path": "/etc"}, {"path": "."}]'})
    report.check("modules.json that points elsewhere", ended(place.rewrite("out")) or expect(
        sorted(path.name for path in (place.path / "out").iterdir()), ["a", "certificate.json", "config.json", "model.safetensors", "modules.json"]))
    shutil.rmtree(place.path / "out")
    bad = os.fsencode(place.path / "model") + b"/caf\xe9.txt"
    with open(bad, "w") as file:
        file.write("x")
    report.check("a name that no certificate can hold", ended(place.rewrite("out"), 0, ["caf\\xe9.txt was not copied"]) or expect(
        os.path.exists(bad.replace(b"/model/", b"/out/")), False))
    os.unlink(bad)
    shutil.rmtree(place.path / "out")
    secret = place.path / "model" / "a" / "b.txt"
    secret.chmod(0)
    os.chmod(place.path.parent, 0o755)
    os.chmod(place.path, 0o777)

    def somebody():
        if os.geteuid() == 0:
            os.setuid(65534)

    result = pare("rewrite", "model", "-o", "out", *QUICK, cwd=place.path, preexec_fn=somebody)
    there = sorted(path.name for path in place.path.iterdir())
    report.check("one that cannot be read", ended(result, 1, ["b.txt", "Permission denied"]) or expect(there, ["model"]))
    secret.chmod(0o644)
    os.chmod(place.path, 0o755)
    result = pare("rewrite", "model", "-o", "out", *QUICK, cwd=place.path, preexec_fn=somebody)
    report.check("a folder that cannot be written", ended(result, 1, ["cannot create 'out'", "Permission denied"]))


def check_cache(report, work):
    """As the Hugging Face cache has it: a snapshot of links to blobs."""
    place = Place(report, work, "cache")
    model = place.path / "model"
    put(model, {"tokenizer.json": "{}", "1_Pooling/config.json": "{}", "modules.json": '[{"path": "1_Pooling"}]'})
    snapshot, blobs = (place.path / "models--a--b" / name for name in ("snapshots/0123", "blobs"))
    blobs.mkdir(parents=True)
    for name, content in tree(model).items():
        blob = blobs / hashlib.sha256(content).hexdigest()
        blob.write_bytes(content)
        (snapshot / name).parent.mkdir(parents=True, exist_ok=True)
        os.symlink(os.path.relpath(blob, (snapshot / name).parent), snapshot / name)
    before = tree(place.path)
    report.check("a snapshot", ended(pare("rewrite", snapshot, "-o", "out", *QUICK, cwd=place.path)))
    found = tree(place.path / "out")
    report.check("its companions as files", expect({n: found.get(n) for n in ("tokenizer.json", "1_Pooling/config.json", "modules.json")}, {
        n: (model / n).read_bytes() for n in ("tokenizer.json", "1_Pooling/config.json", "modules.json")}))
    shutil.rmtree(place.path / "out")
    for target in ("models--a--b/blobs", "models--a--b"):
        result = pare("rewrite", snapshot, "-o", target, *QUICK, "--force", cwd=place.path)
        report.check(f"never onto {target}", ended(result, 1, ["choose another"]) or expect(tree(place.path) == before, True))


def main():
    report = Report("outputs")
    with tempfile.TemporaryDirectory() as folder:
        work = pathlib.Path(folder)
        (work / "model.json").write_text(json.dumps(ARCHITECTURE))
        (work / "ids.json").write_text("[[1, 2, 3]]")
        report.check("init", ended(pare("init", "model.json", "-o", "model", "--generic", "--dtype", "float64", cwd=work)))
        for check in (check_kept, check_replaced, check_input, check_companions, check_unreadable, check_cache):
            check(report, work)
    report.finish()


if __name__ == "__main__":
    main()
