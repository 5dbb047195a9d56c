#!/usr/bin/env python3
"""What `pare train --prepare` stores are the ids of the tokenizers package, over whole packed files of text."""

import gzip
import json
import lzma
import pathlib
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
sys.path[:0] = [str(ROOT / "tests")]
from report import SHARED, Report, ended, expect, pare  # noqa: E402  (the folder above is not a package)

ARCHITECTURE = {"width": 16, "vocab": 600, "context": 32, "embedding": {"position": "learned"},
                "blocks": [{"attention": {"heads": 2, "head_width": 8}, "mlp": {"width": 32, "activation": "gelu"}}]}


def stored(np, folder, part):
    document = json.loads((folder / "tokens.json").read_text())
    kind = {"uint16": "<u2", "uint32": "<u4"}[document["dtype"]]
    return np.concatenate([np.fromfile(folder / shard["file"], kind) for shard in document[part]]).astype(np.int64)


def check(report, np, work, name, tokenizer, path, texts, vocab):
    """Two files to learn from and one to measure on, each packed in another way."""
    files = []
    for i, (text, pack) in enumerate(zip(texts, (lambda data: data, gzip.compress, lzma.compress))):
        files.append(f"{name}-{i}")
        (work / files[-1]).write_bytes(pack(text.encode()))
    config = {"architecture": ARCHITECTURE | {"vocab": vocab}, "data": {"train": files[:2], "validation": files[2:], "tokenizer": str(path)}}
    (work / f"{name}.json").write_text(json.dumps(config))
    report.check(f"{name}: --prepare", ended(pare("train", "--prepare", f"{name}.json", "-o", f"{name}-shards", cwd=work)))
    for part, of in (("train", texts[:2]), ("validation", texts[2:])):
        wanted = np.concatenate([tokenizer.encode(text, add_special_tokens=False).ids for text in of])
        found = stored(np, work / f"{name}-shards", part)
        report.check(f"{name}: {part}", expect(len(found), len(wanted)) or expect(int((found != wanted).sum()), 0))


def main():
    report = Report("prepared tokens")
    report.peers("numpy", "tokenizers")
    import numpy as np
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    book = (ROOT / "docs/design.md").read_text() + (ROOT / "README.md").read_text()
    third = len(book) // 3
    texts = [book[:third], book[third:2 * third] + " naïve 日本語 🙂\n\n", book[2 * third:]]
    with tempfile.TemporaryDirectory() as folder:
        work = pathlib.Path(folder)
        tokenizer = Tokenizer(models.BPE())
        tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
        tokenizer.decoder = decoders.ByteLevel()
        tokenizer.train_from_iterator([book], trainers.BpeTrainer(vocab_size=600, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False))
        tokenizer.save(str(work / "tokenizer.json"))
        check(report, np, work, "trained", tokenizer, work / "tokenizer.json", texts, 600)
        gpt2 = SHARED / "data/tokenizers"
        if (gpt2 / "encoder.json").exists():
            tokenizer = Tokenizer(models.BPE.from_file(str(gpt2 / "encoder.json"), str(gpt2 / "vocab.bpe")))
            tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
            check(report, np, work, "gpt2", tokenizer, gpt2 / "encoder.json", texts, 50257)
        else:
            report.skip("gpt2", f"no {gpt2}")
    report.finish()


if __name__ == "__main__":
    main()
