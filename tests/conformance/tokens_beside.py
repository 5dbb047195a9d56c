#!/usr/bin/env python3
"""Token ids of folders whose tokenizer is spread over several files, beside those of transformers' AutoTokenizer.

A vocabulary with merges and a tokenizer.json, each with tokens that are written beside it only: in tokenizer_config.json,
added_tokens.json or special_tokens_map.json; and classes of tokenizers with rules of their own.
"""

import json
import pathlib
import subprocess
import sys
import tempfile

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent))
from report import PARE, Report

report = Report("tokens beside a tokenizer")
report.peers("transformers", "tokenizers")
import numpy
import transformers
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

transformers.logging.set_verbosity_error()
TOKENIZE = PARE.parent / "tokenize"
LETTERS = sorted(pre_tokenizers.ByteLevel.alphabet())
SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", "<tool>"]
TEXTS = ["hello", "a", "12 345", "it'S IT's", "e\u0301 \u00e9", "x<|im_start|>y", " <|im_end|> z", "a<|endoftext|>b<tool>c", "</s>q<pad>", "x  y\tz"]


def token(content, **more):
    return {"content": content, "special": True, "lstrip": False, "rstrip": False, "normalized": False, "single_word": False, **more}


def vocabulary(first=()):
    ids = {word: n for n, word in enumerate([*first, *LETTERS])}
    for word in ("ĊĊ", "12", "'S"):
        ids[word] = len(ids)
    return ids


MERGES = [("Ċ", "Ċ"), ("1", "2"), ("'", "S")]


def write(folder, name, what):
    text = what if isinstance(what, str) else json.dumps(what, ensure_ascii=False)
    (folder / name).write_text(text, encoding="utf-8")


def pieces(folder, ids, settings, **more):
    """vocab.json, merges.txt and what is beside them."""
    write(folder, "vocab.json", ids)
    write(folder, "merges.txt", "#version: 0.2\n" + "".join(f"{a} {b}\n" for a, b in MERGES))
    write(folder, "tokenizer_config.json", settings)
    for name, what in more.items():
        write(folder, f"{name}.json", what)


def whole(folder, settings, **more):
    """tokenizer.json without the special tokens, and what is beside it."""
    made = Tokenizer(models.BPE(vocab=vocabulary(), merges=MERGES))
    made.pre_tokenizer, made.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
    made.save(str(folder / "tokenizer.json"))
    write(folder, "tokenizer_config.json", {"tokenizer_class": "PreTrainedTokenizerFast", **settings})
    for name, what in more.items():
        write(folder, f"{name}.json", what)


NEXT = len(vocabulary())
DECODER = {str(NEXT + n): token(word) for n, word in enumerate(SPECIAL)}
ADDED = {word: NEXT + n for n, word in enumerate(SPECIAL)}
NAMED = {"eos_token": "<|im_end|>", "pad_token": "<|endoftext|>"}
END = token("</s>", normalized=True) | {"__type": "AddedToken"}
OPT = {"bos_token": END, "eos_token": END, "unk_token": END, "pad_token": "<pad>"}
CASES = {
    "OPT": lambda f: pieces(f, vocabulary(["<s>", "<pad>", "</s>", "<unk>"]), {"tokenizer_class": "GPT2Tokenizer", "add_bos_token": True, **OPT}, special_tokens_map=OPT),
    "OPT without a first token": lambda f: pieces(f, vocabulary(["<s>", "<pad>", "</s>", "<unk>"]), {"tokenizer_class": "GPT2Tokenizer", **OPT}),
    "Qwen2, added_tokens_decoder": lambda f: pieces(f, vocabulary(), {"tokenizer_class": "Qwen2Tokenizer", "added_tokens_decoder": DECODER, **NAMED}),
    "Qwen2, added_tokens.json": lambda f: pieces(f, vocabulary(), {"tokenizer_class": "Qwen2TokenizerFast", **NAMED}, added_tokens=ADDED),
    "GPT-2, added_tokens.json": lambda f: pieces(f, vocabulary(["<|endoftext|>"]), {"tokenizer_class": "GPT2Tokenizer"}, added_tokens={"<tool>": NEXT + 1}),
    "tokenizer.json, added_tokens_decoder": lambda f: whole(f, {"added_tokens_decoder": DECODER}),
    "tokenizer.json, spaces beside it": lambda f: whole(f, {"added_tokens_decoder": {str(NEXT): token("<|im_end|>", lstrip=True, rstrip=True)}}),
    "tokenizer.json, added_tokens.json": lambda f: whole(f, {}, added_tokens=ADDED),
    "tokenizer.json, additional_special_tokens": lambda f: whole(f, {"additional_special_tokens": SPECIAL[:2]}),
    "tokenizer.json, eos_token": lambda f: whole(f, {"eos_token": "<|im_end|>"}),
    "tokenizer.json, special_tokens_map.json": lambda f: whole(f, {}, special_tokens_map={"eos_token": token("<|im_end|>")}),
    "tokenizer.json alone": lambda f: whole(f, {}),
}

with tempfile.TemporaryDirectory() as name:
    for case, make in CASES.items():
        folder = pathlib.Path(name) / case.replace(" ", "-").replace(",", "")
        folder.mkdir()
        make(folder)
        peer = transformers.AutoTokenizer.from_pretrained(folder)
        write(folder, "text", "\n".join(TEXTS) + "\n")
        done = subprocess.run([TOKENIZE, "lines", folder, folder / "text", folder / "ids"], capture_output=True, text=True)
        if done.returncode:
            report.check(case, done.stderr.strip())
            continue
        ids = numpy.fromfile(folder / "ids", dtype=numpy.int32).tolist()
        for text in TEXTS:
            end = ids.index(-1)
            ours, ids = ids[:end], ids[end + 1:]
            theirs = peer(text)["input_ids"]
            report.check(f"{case}: {text!r}", "" if ours == theirs else f"{ours}, expected {theirs}")
    refused = {
        "an id of its own": (lambda f: whole(f, {"added_tokens_decoder": {str(NEXT + 7): token("<tool>")}}), "has the id"),
        "a class that is not known": (lambda f: pieces(f, vocabulary(), {"tokenizer_class": "CLIPTokenizer"}), "CLIPTokenizer"),
        "an id that is none": (lambda f: whole(f, {"added_tokens_decoder": {"x": token("<tool>")}}), "no token id"),
    }
    for case, (make, words) in refused.items():
        folder = pathlib.Path(name) / case.replace(" ", "-")
        folder.mkdir()
        make(folder)
        write(folder, "text", "a\n")
        done = subprocess.run([TOKENIZE, "lines", folder, folder / "text", folder / "ids"], capture_output=True, text=True)
        report.check(case, "" if done.returncode and words in done.stderr else f"ended with {done.returncode}: {done.stderr.strip()}")
report.finish()
