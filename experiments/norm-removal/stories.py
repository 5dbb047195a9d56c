#!/usr/bin/env python3
"""Token ids of TinyStories for stories260K, as it was trained: every story begins with token 1.

stories.py SAMPLE.txt.xz tok512.bin tinystories.u16 [KNOWN.json]: the ids as little-endian uint16, one story after another.
KNOWN.json, a list of stories as ids, is compared with the first ones. pare's own tokenizer is not used: this is for training,
and its ids are to be right by themselves.
"""

import array
import json
import lzma
import struct
import sys


def read_vocabulary(path):
    """llama2.c's file: the longest token, then a score, a length and the bytes of each."""
    data = open(path, "rb").read()
    at, tokens = 4, {}
    while at < len(data):
        score, length = struct.unpack_from("<fi", data, at)
        tokens.setdefault(data[at + 8 : at + 8 + length], (len(tokens), score))
        at += 8 + length
    return tokens


def encode_word(word, tokens):
    """The pair of neighbours that makes the token of the highest score becomes one, until none does."""
    pieces = []
    for character in word:
        encoded = character.encode()
        pieces += [encoded] if encoded in tokens else [b"<0x%02X>" % byte for byte in encoded]
    while True:
        pairs = [(tokens[a + b][1], -i) for i, (a, b) in enumerate(zip(pieces, pieces[1:])) if a + b in tokens]
        if not pairs:
            return [tokens[piece][0] for piece in pieces]
        i = -max(pairs)[1]
        pieces[i : i + 2] = [pieces[i] + pieces[i + 1]]


def encode(story, tokens, known_words):
    ids = [1]
    for word in story.split(" "):  # no token has a space but at its beginning
        if word not in known_words:
            known_words[word] = encode_word(" " + word, tokens)
        ids += known_words[word]
    return ids


def main():
    sample, vocabulary, output, *known = sys.argv[1:]
    tokens, words = read_vocabulary(vocabulary), {}
    assert not any(b" " in token[1:].strip() for token in tokens if token.startswith(b" ")), "a token of several words"
    stories = [encode(story.strip(), tokens, words) for story in lzma.open(sample).read().decode().split("<|endoftext|>") if story.strip()]
    for expected in json.load(open(known[0])) if known else []:
        assert expected in stories[:60], f"a known story is not among the first: {expected[:20]}"
    ids = array.array("H", [token for story in stories for token in story])
    if sys.byteorder == "big":
        ids.byteswap()
    open(output, "wb").write(ids.tobytes())
    print(f"{len(stories)} stories, {len(ids)} tokens")


if __name__ == "__main__":
    main()
