#!/usr/bin/env python3
"""pare's tokenizers against the tokenizers package: one thread, the same text in memory, the same ids; taking turns.

    $(cat .deps/python-path) benchmarks/tokenizer_speed.py [--rounds N] [--text FILE.xz]

Prints the median of each side and their ratio (above 1: pare is faster), in CPU time, which neighbours disturb least. Needs ../shared/data or $PARE_SHARED.
"""

import argparse
import json
import lzma
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile
import time

os.environ["TOKENIZERS_PARALLELISM"] = "false"
os.environ["RAYON_NUM_THREADS"] = "1"
ROOT = pathlib.Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "tests"))
sys.path.insert(0, str(ROOT / "tests/conformance"))
from report import SHARED
from tokenizer_ids import LLAMA3, byte_level, minilm, of_files, sentence_piece, split
from tokenizers import Tokenizer


def cases(folder):
    found = list(of_files(folder))
    yield from ((case.name, case.peer, case.path) for case in (found[0], found[1], minilm()))
    corpus = (SHARED / "data/text/tinyshakespeare.txt").read_text().splitlines(keepends=True)
    for name, stored in (("Llama 3's pattern", byte_level(corpus, split(LLAMA3), ignore_merges=True)),
                         ("SentencePiece-style", sentence_piece(corpus))):
        path = folder / f"{name}.json"
        path.write_text(json.dumps(stored))
        yield name, Tokenizer.from_file(str(path)), path


def ours(tool, tokenizer, path):
    """A new process each time, so that nothing is remembered from the round before."""
    done = subprocess.run([tool, "time", tokenizer, path, "1"], capture_output=True, text=True, check=True)
    seconds, count = done.stdout.split()
    return float(seconds), int(count)


def theirs(stored, text):
    peer = Tokenizer.from_str(stored)  # a new one each time: it remembers words too
    peer.no_truncation()
    begin = time.process_time()
    count = len(peer.encode(text, add_special_tokens=False).ids)
    return time.process_time() - begin, count


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--text", default=str(SHARED / "data/text/novels-val.txt.xz"))
    parser.add_argument("--tool", default=str(ROOT / "build/tokenize"))
    options = parser.parse_args()
    text = lzma.open(options.text).read().decode()
    megabytes = len(text.encode()) / 1e6
    print(f"{pathlib.Path(options.text).name}: {megabytes:.1f} MB, medians of {options.rounds} rounds, one thread")
    print(f"{'tokenizer':28} {'tokens':>10} {'pare':>12} {'tokenizers':>12} {'ratio':>7}")
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        path = folder / "text.txt"
        path.write_bytes(text.encode())
        for label, peer, stored in cases(folder):
            peer.no_padding()
            serialised = peer.to_str()
            times = ([], [])
            for _ in range(options.rounds):
                (mine, count), (other, expected) = ours(options.tool, stored, path), theirs(serialised, text)
                if count != expected:
                    sys.exit(f"benchmark: {label}: {count} tokens, expected {expected}")
                times[0].append(mine)
                times[1].append(other)
            mine, other = (statistics.median(side) for side in times)
            print(f"{label:28} {count:10,} {megabytes / mine:7.1f} MB/s {megabytes / other:7.1f} MB/s {other / mine:7.1f}", flush=True)


main()
