#!/usr/bin/env python3
"""Writes pare/data/unicode.txt: what the tokenizers package knows of each character.

    $(cat .deps/python-path) tools/unicode_table.py [--check]

Its parts stand on different versions of Unicode (its regular expressions on 16, lower case on 17, BERT's classes on 8,
normal forms on 9), so no library and no Python has all of them. Every property is asked of the package itself,
character by character. Decompositions and combining classes, which it does not hand out, come from Python's unicodedata,
which has to be of version 14 or newer, and are kept where the package agrees. --check compares and writes nothing.
"""

import pathlib
import sys
import unicodedata

import tokenizers
from tokenizers import Regex, normalizers, pre_tokenizers

TABLE = pathlib.Path(__file__).resolve().parent.parent / "pare/data/unicode.txt"
WIDTH = 118
CATEGORIES = "Lu Ll Lt Lm Lo Mn Mc Me Nd Nl No Pc Pd Ps Pe Pi Pf Po Sm Sc Sk So Zs Zl Zp Cc Cf Co".split()
POINTS = [c for c in range(0x110000) if not 0xD800 <= c <= 0xDFFF]
HANGUL = range(0xAC00, 0xD7A4)


def ranges(points):
    found = []
    for c in points:
        if found and found[-1][1] == c - 1:
            found[-1][1] = c
        else:
            found.append([c, c])
    return [f"{a:X}" if a == b else f"{a:X}-{b:X}" for a, b in found]


def matched(pattern):
    """Which characters a pattern matches, one by one: those that are removed."""
    split = pre_tokenizers.Split(Regex(pattern), "removed")
    return [c for c in POINTS if not split.pre_tokenize_str(chr(c))]


def alone(pre_tokenizer, pieces):
    """Which characters give so many pieces between two letters: 3 where they stand alone, 1 where they join them."""
    return [c for c in POINTS if len(pre_tokenizer.pre_tokenize_str(f"a{chr(c)}b")) == pieces]


def bert(**chosen):
    off = {"clean_text": False, "handle_chinese_chars": False, "strip_accents": False, "lowercase": False}
    return normalizers.BertNormalizer(**{**off, **chosen}).normalize_str


def mappings(function):
    """Characters that become others, as first-last/step+distance where neighbours move alike."""
    single, others = [], []
    for c in POINTS:
        to = function(chr(c))
        if to != chr(c):
            (single if len(to) == 1 else others).append((c, to))
    runs = []
    for c, to in single:
        distance = ord(to) - c
        for run in runs[-1:]:
            if run[3] == distance and c - run[1] <= 2 and run[2] in (0, c - run[1]):
                run[1], run[2] = c, c - run[1]
                break
        else:
            runs.append([c, c, 0, distance])
    words = [f"{a:X}-{b:X}/{step or 1}{distance:+d}" for a, b, step, distance in runs]
    return words + [f"{c:X}={'.'.join(f'{ord(x):X}' for x in to)}" for c, to in others]


def decompositions(form, other, wants_tag):
    """One step of decomposition, where the package decomposes at all."""
    words = []
    for c in POINTS:
        text = unicodedata.decomposition(chr(c)).split()
        if not text or c in HANGUL or text[0].startswith("<") != wants_tag:
            continue
        if form(chr(c)) != chr(c) and form(chr(c)) != other(chr(c)):
            words.append(f"{c:X}={'.'.join(f'{int(x, 16):X}' for x in text[wants_tag:])}")
    return words


def uncomposed(compose):
    """Pairs that are decomposed and never composed again."""
    found = []
    for c in POINTS:
        text = unicodedata.decomposition(chr(c)).split()
        if len(text) == 2 and not text[0].startswith("<") and c not in HANGUL:
            if compose("".join(chr(int(x, 16)) for x in text)) != chr(c):
                found.append(c)
    return ranges(found)


def classes(decompose):
    """Combining classes, of those that move before an iota subscript, which has the highest but one."""
    found = {}
    for c in POINTS:
        number = unicodedata.combining(chr(c))
        if number and (number >= 240 or decompose(f"\u0345{chr(c)}") == f"{decompose(chr(c))}\u0345"):
            found.setdefault(number, []).append(c)
    return [f"{word}={number}" for number, points in sorted(found.items()) for word in ranges(points)]


def table():
    nfd, nfc, nfkd = (getattr(normalizers, form)().normalize_str for form in ("NFD", "NFC", "NFKD"))
    punctuation = alone(pre_tokenizers.BertPreTokenizer(), 3)
    yield "version", [tokenizers.__version__]
    for category in CATEGORIES:
        yield category, ranges(matched(rf"\p{{{category}}}"))
    yield "white", ranges(matched(r"\s"))
    word = matched(r"\w")
    other = alone(pre_tokenizers.Whitespace(), 1)  # by another library for expressions, which Whitespace uses
    yield "word", ranges(word)
    yield "rust_word_more", ranges(sorted(set(other) - set(word)))
    yield "rust_word_less", ranges(sorted(set(word) - set(other)))
    yield "han", ranges(matched(r"\p{Han}"))
    yield "numeric", ranges(alone(pre_tokenizers.Digits(individual_digits=True), 3))
    yield "mark", ranges(c for c in POINTS if normalizers.StripAccents().normalize_str(chr(c)) == "")
    yield "bert_punctuation", ranges(punctuation)
    yield "bert_removed", ranges(c for c in POINTS if bert(clean_text=True)(chr(c)) == "")
    yield "bert_mark", ranges(c for c in POINTS if bert(strip_accents=True)(f"a{chr(c)}") == "a")
    yield "bert_chinese", ranges(c for c in POINTS if bert(handle_chinese_chars=True)(chr(c)) != chr(c))
    yield "lower", mappings(normalizers.Lowercase().normalize_str)
    yield "canonical", decompositions(nfd, lambda text: text, False)
    yield "compatible", decompositions(nfkd, nfd, True)
    yield "uncomposed", uncomposed(nfc)
    yield "class", classes(nfd)


def lines():
    for name, words in table():
        line = name
        for word in words:
            if len(line) + 1 + len(word) > WIDTH:
                yield line
                line = name
            line += " " + word
        yield line


def main():
    if tuple(map(int, unicodedata.unidata_version.split("."))) < (14,):
        sys.exit(f"unicode_table: Python's Unicode is {unicodedata.unidata_version}, older than 14")
    head = ("# Written by tools/unicode_table.py: what tokenizers knows of each character; hexadecimal, but for classes"
            " and distances.\n")
    text = head + "".join(line + "\n" for line in lines())
    if "--check" in sys.argv[1:]:
        if text != TABLE.read_text():
            sys.exit(f"unicode_table: {TABLE.name} differs from what tokenizers {tokenizers.__version__} says")
        print("unicode_table: as the package says")
    else:
        TABLE.write_text(text)


main()
