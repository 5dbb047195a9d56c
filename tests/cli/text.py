#!/usr/bin/env python3
"""`--text`: the model's own tokenizer, texts longer than the context, compressed files, and everything that can be wrong."""

import gzip
import json
import lzma
import math
import pathlib
import shutil
import struct
import sys
import tempfile

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent))
sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "error"))
from files import read_tensors, write_tensors
from report import SHARED, Report, ended, expect, pare

CONTEXT = 16
ARCHITECTURE = {
    "name": "tiny", "width": 8, "vocab": 300, "context": CONTEXT, "embedding": {"position": "learned"},
    "blocks": [{"attention": {"heads": 2, "head_width": 4, "norm": {"kind": "rms"}}, "mlp": {"width": 12, "activation": "gelu"}}],
    "head": {"tied": False},
}
IMAGES = {
    "name": "images", "task": "classifier", "width": 8, "context": 5,
    "embedding": {"position": "learned", "class_token": True, "patch": {"size": 2, "image": 4, "channels": 1}},
    "blocks": [{"attention": {"heads": 2, "head_width": 4, "mask": "full"}, "mlp": None}],
    "head": {"classes": 3},
}
TEXT = "the cat sat on the mat, the other cat did not. Grüße!\n"


def alphabet():
    """GPT-2's characters for bytes."""
    seen = [*range(33, 127), *range(161, 173), *range(174, 256)]
    other = iter(range(256, 512))
    return [chr(byte) if byte in seen else chr(next(other)) for byte in range(256)]


def tokenizer(**changes):
    letters = alphabet()
    merges = [("t", "h"), ("th", "e"), (letters[32], "the"), ("c", "at")]
    merges.insert(3, ("a", "t"))
    vocab = {token: n for n, token in enumerate([*letters, *(a + b for a, b in merges)])}
    return {"added_tokens": [{"id": 290, "content": "<|end|>", "special": True}],
            "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": False, "use_regex": True},
            "model": {"type": "BPE", "vocab": vocab, "merges": [f"{a} {b}" for a, b in merges]},
            "decoder": {"type": "ByteLevel"}, **changes}


def plain_ids(text):
    """The same tokens by hand: bytes, with the longest of the few words that are merged."""
    ids, data = [], text.encode()
    words = [(b" the", 258), (b"the", 257), (b"cat", 260), (b"th", 256), (b"at", 259)]
    while data:
        for word, number in words:
            if data.startswith(word):
                ids.append(number)
                data = data[len(word):]
                break
        else:
            ids.append(data[0])
            data = data[1:]
    return ids


class Place:
    def __init__(self, report, folder):
        self.report, self.folder = report, folder
        (folder / "architecture.json").write_text(json.dumps(ARCHITECTURE))
        (folder / "images.json").write_text(json.dumps(IMAGES))
        for name, source in (("model", "architecture.json"), ("images", "images.json")):
            report.check(f"init {name}", ended(self.pare("init", source, "-o", name)))
        self.write("model/tokenizer.json", json.dumps(tokenizer()))

    def pare(self, *words, **options):
        return pare(*words, cwd=self.folder, **options)

    def write(self, name, content):
        path = self.folder / name
        path.write_bytes(content.encode() if isinstance(content, str) else content)
        return path

    def run(self, name, *flags, model="model"):
        return self.pare("run", model, "-o", f"{name}.out", "--force", *flags)

    def same_answers(self, one, other):
        return "" if (self.folder / f"{one}.out").read_bytes() == (self.folder / f"{other}.out").read_bytes() else "the answers differ"


def check_right(place):
    report, text = place.report, TEXT * 3
    ids = plain_ids(text)
    lists = [ids[n:n + CONTEXT] for n in range(0, len(ids), CONTEXT)]
    place.write("ids.json", json.dumps(lists))
    report.check("by ids", ended(place.run("ids", "--tokens", "ids.json")))
    said = [f"{len(ids)} tokens", "longer than the context", f"split into {len(lists)} sequences", f"up to {CONTEXT}"]
    for name, content in (("text.txt", text.encode()), ("text.gz", gzip.compress(text.encode())), ("text.xz", lzma.compress(text.encode())),
                          ("named.txt", lzma.compress(text.encode()))):
        place.write(name, content)
        report.check(name, ended(place.run("text", "--text", name), words=said) or place.same_answers("ids", "text"))
    place.write("short.txt", "the cat")
    report.check("no split where none is needed", ended(place.run("short", "--text", "short.txt"), words=["3 tokens"], without=["split"]))
    report.check("max-tokens", ended(place.run("some", "--text", "text.txt", "--max-tokens", "20"), words=["20 tokens", "--max-tokens"]))
    shutil.copytree(place.folder / "model", place.folder / "bare")
    (place.folder / "bare/tokenizer.json").rename(place.folder / "other.json")
    report.check("a tokenizer of elsewhere", ended(place.run("other", "--text", "text.txt", "--tokenizer", "other.json", model="bare"))
                 or place.same_answers("ids", "other"))
    place.write("one.txt", "c")
    result = place.run("one", "--text", "one.txt", "--json")
    report.check("one token", ended(result) or expect(json.loads(result.stdout).get("predicted_tokens"), None))
    place.write("special.txt", "a<|end|>b")
    result = place.run("special", "--text", "special.txt", "--json")
    report.check("a special token in the text", ended(result) or expect(json.loads(result.stdout)["tokens"], 3))
    around = tokenizer(post_processor={"type": "TemplateProcessing", "single": [{"SpecialToken": {"id": "a", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}],
                                       "special_tokens": {"a": {"id": "a", "ids": [97], "tokens": ["a"]}}})
    place.write("around.json", json.dumps(around))
    place.write("around_ids.json", json.dumps([[97, *ids[n:n + CONTEXT - 1]] for n in range(0, len(ids), CONTEXT - 1)]))
    report.check("around each sequence", ended(place.run("around", "--text", "text.txt", "--tokenizer", "around.json"))
                 or ended(place.run("around_ids", "--tokens", "around_ids.json")) or place.same_answers("around", "around_ids"))


def check_commands(place):
    report = place.report
    result = place.pare("verify", "model", "model", "--text", "text.txt", "--json")
    report.check("verify", ended(result) or expect(json.loads(result.stdout)["inputs"]["kind"], "text"))
    result = place.pare("rewrite", "model", "-o", "smaller", "--passes", "fold_norm_gain", "--text", "text.xz", "--json")
    report.check("rewrite", ended(result) or expect(json.loads(result.stdout)["inputs"]["kind"], "text"))
    ids = plain_ids(TEXT * 3)
    length = next(n for n in range(9, CONTEXT) if len(ids) % n)
    rest = len(ids) % length
    place.write("whole.json", json.dumps([ids[n:n + length] for n in range(0, len(ids) - rest, length)]))
    result = place.pare("probe", "model", "--text", "text.txt", "--length", str(length), "--json")
    said = [f"cut by --length into {len(ids) // length} sequences of {length}", f"the last {rest} do not fill a sequence and are left out"]
    report.check("probe: a text that is cut, without its rest", ended(result, words=said, without=["longer than the context"]))
    by_ids = place.pare("probe", "model", "--tokens", "whole.json", "--json")
    report.check("probe: the same as whole sequences", ended(by_ids) or expect(*({**json.loads(r.stdout), "inputs": ""} for r in (result, by_ids))))
    result = place.pare("probe", "model", "--text", "short.txt", "--json")
    report.check("probe: a text that fits is one sequence", ended(result, without=["left out"]) or expect(json.loads(result.stdout)["tokens"], 3))
    report.check("the tokenizer goes along", ended(place.run("again", "--text", "text.txt", model="smaller")))


def check_wrong(place):
    report = place.report
    texts = {
        "empty": ("", ["empty.txt", "no tokens", "empty"]),
        "bytes": (b"good " * 100 + b"\xff", ["bytes.txt", "0xFF at 500", "UTF-8"]),
        "cut": (lzma.compress(TEXT.encode() * 100)[:-30], ["cut.txt"]),
        "damaged": (b"\x1f\x8b\x08\0\0\0\0\0\0\3" + b"\xff" * 20, ["damaged.txt", "damaged"]),
        "utf16": (TEXT.encode("utf-16"), ["utf16.txt", "UTF-16LE", "iconv -f UTF-16LE -t UTF-8"]),
        "unmarked": (TEXT.encode("utf-16-be"), ["unmarked.txt", "UTF-16BE", "iconv"]),
        "packed": (lzma.compress(TEXT.encode("utf-16-le")), ["UTF-16LE"]),
        "zipped": (b"PK\3\4 and more", ["zip", "not supported"]),
    }
    for name, (content, words) in texts.items():
        place.write(f"{name}.txt", content)
        report.check(name, ended(place.run("x", "--text", f"{name}.txt"), 1, words))
    large = tokenizer()
    large["model"]["vocab"]["more"] = 300
    beyond = tokenizer()
    beyond["added_tokens"][0]["id"] = 400
    files = {
        "corrupted": (json.dumps(tokenizer())[:-40], ["corrupted.json", "JSON"]),
        "large": (json.dumps(large), ["ids up to 300", "vocabulary is of 300", "another model's"]),
        "beyond": (json.dumps(beyond), ["'<|end|>'", "400", "300"]),
        "unigram": (json.dumps({"model": {"type": "Unigram", "vocab": []}}), ["'Unigram'", "not supported"]),
        "doubling": (json.dumps(tokenizer(normalizer={"type": "Sequence", "normalizers": [{"type": "Replace", "pattern": {"String": "a"}, "content": "aa"}] * 60})),
                     ["doubling.json", "normalizer makes more than", "remove its Replace"]),
        "nothing": ("{}", ["nothing.json", "no 'model'"]),
    }
    for name, (content, words) in files.items():
        place.write(f"{name}.json", content)
        report.check(name, ended(place.run("x", "--text", "special.txt", "--tokenizer", f"{name}.json"), 1, words))
    uses = {
        ("--text", "text.txt", "--tokens", "ids.json"): ["--text", "--tokens"],
        ("--tokens", "ids.json", "--tokenizer", "other.json"): ["--tokenizer", "without --text"],
        ("--tokens", "ids.json", "--max-tokens", "3"): ["--max-tokens", "without --text"],
        ("--text", "text.txt", "--max-tokens", "0"): ["--max-tokens"],
        ("--text", "none.txt"): ["none.txt"],
        ("--text", "text.txt", "--tokenizer", "none.json"): ["none.json"],
    }
    for flags, words in uses.items():
        report.check(" ".join(flags), ended(place.run("x", *flags), 1, words))
    report.check("no tokenizer", ended(place.run("x", "--text", "text.txt", model="bare"), 1, ["holds no tokenizer", "tokenizer.json", "--tokenizer"]))
    report.check("images", ended(place.run("x", "--text", "text.txt", model="images"), 1, ["reads images"]))
    report.check("verify, twice", ended(place.pare("verify", "model", "model", "--text", "text.txt", "--random", "3"), 1, ["--text", "--random"]))
    result = place.run("x", "--text", "bytes.txt", "--json")
    report.check("as JSON", ended(result, 1) or expect(json.loads(result.stdout)["error"]["kind"], "input"))
    report.check("its own text", ended(place.pare("run", "model", "-o", "text.txt", "--force", "--text", "text.txt"), 1, ["text.txt"]))


def check_guessing(place):
    """A model that is sure, and wrong: what it was given is hardly what it was trained on. Random tokens are no text."""
    report = place.report
    shutil.copytree(place.folder / "model", place.folder / "loud")
    weights = place.folder / "loud" / "model.safetensors"
    tensors = read_tensors(weights)
    dtype, shape, data = tensors["head.weight"]
    numbers = struct.unpack(f"<{len(data) // 4}f", data)
    tensors["head.weight"] = (dtype, shape, struct.pack(f"<{len(numbers)}f", *(2000 * number for number in numbers)))
    write_tensors(weights, tensors)
    said = ["warning: the reference is worse than guessing on these tokens: ", " nats a token", "ln 300 = 5.70", "tokenizer"]
    for flags in (["--text", "text.txt"], ["--tokens", "ids.json"]):
        for command in (["verify", "loud", "loud"], ["rewrite", "loud", "-o", f"loud{flags[0]}", "--passes", "fold_norm_gain"]):
            name = f"guessing: {command[0]} {flags[0]}"
            result = place.pare(*command, *flags, "--json")
            document = json.loads(result.stdout or "{}")
            nats = document.get("metrics", {}).get("reference_nll_nats", 0)
            words = [*said, f"{nats:.4g} nats a token"]
            report.check(name, ended(result, words=words) or expect(nats > 1.5 * math.log(300), True)
                         or expect(document["verdict"], "identical" if command[0] == "verify" else "proved")
                         or expect([line.startswith("the reference is worse") for line in document["warnings"]], [True]))
    report.check("guessing: in the certificate", expect(len(json.loads((place.folder / "loud--text/certificate.json").read_text())["warnings"]), 1))
    report.check("guessing: run", ended(place.run("x", "--text", "text.txt", model="loud"), words=["the model is worse than guessing"]))
    for name, result in {"a model that was never trained": place.pare("verify", "model", "model", "--text", "text.txt", "--json"),
                         "random tokens": place.pare("verify", "loud", "loud", "--random", "3", "--json")}.items():
        report.check(f"no guessing: {name}", ended(result, without=["guessing"]) or expect(json.loads(result.stdout)["warnings"], []))
    report.check("no guessing: run", ended(place.run("x", "--text", "text.txt"), without=["guessing"]))


def check_stories(place):
    """A trained model, and the story that it was given as ids."""
    model = SHARED / "models/stories260K"
    if not model.exists():
        return place.report.skip("stories260K", f"{model} is not there")
    story = lzma.open(SHARED / "data/text/tinystories-sample.txt.xz").read().decode().split("<|endoftext|>")[0]
    place.write("story.txt", story.strip())
    place.write("story.json", json.dumps(json.loads((model / "tinystories_40_token_ids.json").read_text())[:1]))
    place.report.check("stories260K", ended(place.run("story", "--text", "story.txt", model=model), words=["319 tokens"], without=["split"])
                       or ended(place.run("story_ids", "--tokens", "story.json", model=model)) or place.same_answers("story", "story_ids"))


def main():
    report = Report("text")
    with tempfile.TemporaryDirectory() as name:
        place = Place(report, pathlib.Path(name))
        for check in (check_right, check_commands, check_wrong, check_guessing, check_stories):
            check(place)
    report.finish()


if __name__ == "__main__":
    main()
