"""Text that tokenizers disagree on: every character, and sequences in which neighbours matter. The same each time."""

import random

CONTRACTIONS = "I'm we've they'll he'd it's don't you're I'M WE'VE THEY'LL HE'D IT'S I'ſ 'ſs K'K O'Kk 'lL 'rE '’s ’s"
SPACES = [" ", "  ", "   ", "\t", "\n", "\n\n", "\r\n", "\r", " \n", "\n ", " \t ", "\v", "\f", "\x1c", "\x1f", "\x85", "\xa0",
          "\u1680", "\u180e", "\u2000", "\u2009", "\u200a", "\u200b", "\u2028", "\u2029", "\u202f", "\u205f", "\u3000", "\ufeff"]
EMOJI = ["👨\u200d👩\u200d👧\u200d👦", "👍🏽", "🇩🇪🇫🇷", "❤\ufe0f\u200d🔥", "🏳\ufe0f\u200d🌈", "1\ufe0f\u20e3", "☺\ufe0e", "🧑🏿\u200d🚀", "🫨", "🪿"]
WORDS = ["naïve", "cafe\u0301", "Ångström", "A\u030angstro\u0308m", "ﬁnance", "ﬀ", "ß", "ẞ", "İstanbul", "ıI", "ΑΣ ΣΑΣ", "ǅ", "ŉ", "Dž",
         "q\u0307\u0323", "q\u0323\u0307", "a\u0315\u0300\u05ae\u0300\u0301b", "\u1e9b\u0323", "\u212b\u2126\u212a", "x\u20dd", "①②Ⅳⅷ½¾²₃",
         "한국어", "\u1112\u1161\u11ab\u1100\u116e\u11a8", "\u1100\u1161\u1161", "\uac00\u11a8\u11a8", "\u3131\u314f", "العَرَبِيَّةُ", "ﷺ", "لا",
         "ﻻ", "שָׁלוֹם", "हिन्दी", "क्\u200dष", "ক\u09cb", "தமிழ்", "ไทยภาษา", "ลำ", "ພາສາ", "မြန်မာ", "ខ្មែរ", "𠀀𠮷𪜀𫝀𫠠𬺰", "㐀䶵一龥鿿豈\U0002f800", "ひらがなカタカナｶﾞ", "が\u304b\u3099",
         "𝐀𝒷𝟘", "𐐀𐐨", "𞤀𞤢", "ᏣᎳᎩꭰ", "ᲐᲑა", "Ꭰ", "ɐʰˀ", "ーヽ゛", "\U000e0041\U000e007f", "\ue000\U000f0000\U0010ffff", "\ufffd\ufffe\uffff",
         "<|endoftext|>", "a<|endoftext|>b", "<|endoftext|><|endoftext|>", " <|endoftext|> ", "[MASK]", "a[SEP]b [CLS]", "[mask]", "<s>",
         "</s>x", "<unk>", "<pad>", "<0x0A>", "▁", "▁▁a", "a▁b ▁", "Ġ", "Ċa", "##ing", "#", "\0", "\x01\x02", "\x7f", "\x80\x9f", "\xad", "\u200e\u202e\u2066"]


def characters():
    """All of them; of planes in which nothing is assigned, and of private ones, every 16th."""
    dull = [range(0x33500, 0xE0000), range(0xE0200, 0xFFFF0), range(0x100010, 0x10FFF0)]
    return [chr(c) for c in range(0x110000) if not 0xD800 <= c <= 0xDFFF and (c % 16 == 5 or not any(c in r for r in dull))]


def every_character():
    """Each between letters, each with a mark after it, each beside its neighbour."""
    parts = []
    for n, c in enumerate(characters()):
        parts.append(f"a{c}b" if n % 64 else f"a{c}b\n")
    parts.append("\n")
    assigned = [c for c in characters() if ord(c) < 0x20000 or 0xE0000 <= ord(c) < 0xE0200]
    parts += [f" {c}\u0301" for c in assigned]
    parts += [f"{c}" for c in assigned]
    return "".join(parts)


def random_sequences(seed, count):
    draw = random.Random(seed)
    planes = [(0x20, 0x7E), (0x80, 0x24F), (0x300, 0x36F), (0x370, 0x5FF), (0x600, 0x8FF), (0x900, 0xDFF), (0xE00, 0x109F),
              (0x1100, 0x11FF), (0x1AB0, 0x1AFF), (0x1DC0, 0x1DFF), (0x2000, 0x206F), (0x20D0, 0x20FF), (0x3040, 0x30FF),
              (0x4E00, 0x4EFF), (0xAC00, 0xACFF), (0xFB00, 0xFDFF), (0xFE00, 0xFFEF), (0x10A00, 0x10AFF), (0x11000, 0x114FF),
              (0x1D100, 0x1D1FF), (0x1E000, 0x1E9FF), (0x1F300, 0x1FAFF), (0x20000, 0x200FF)]
    parts = []
    for _ in range(count):
        kind = draw.random()
        if kind < 0.35:
            parts.append(draw.choice(WORDS))
        elif kind < 0.6:
            parts.append(draw.choice(SPACES))
        elif kind < 0.7:
            parts.append(draw.choice(EMOJI))
        elif kind < 0.8:
            parts.append(draw.choice(CONTRACTIONS.split()))
        elif kind < 0.9:
            first, last = draw.choice(planes)
            parts.append("".join(chr(draw.randint(first, last)) for _ in range(draw.randint(1, 6))))
        else:
            parts.append("".join(draw.choice("aZ 09.,!\n'") for _ in range(draw.randint(1, 8))))
    return "".join(parts)


def long_runs():
    draw = random.Random(3)
    letters = "".join(draw.choice("abcdefghijklmnopqrstuvwxyz") for _ in range(5000))
    runs = ["a" * 10000, letters, letters.upper(), "7" * 3000, "!?" * 1500, " " * 3000, "\n" * 1000, "\t \n" * 500, "é" * 2000,
            "e\u0301" * 2000, "的" * 2000, "👍" * 1000, "a" + "\u0301" * 500, "x" * 100, "x" * 101, "ü" * 100, "ü" * 101, "a" * 64, "a" * 65]
    return "".join(f"{run} {run}x\n" for run in runs)


def nasty_text():
    edges = "".join(f"{a}{b}{c}" for a in SPACES for b in ["a", "1", "!", "é", "的", ""] for c in SPACES)
    words = " ".join(WORDS + EMOJI) + "\n" + "\n".join(WORDS) + "\n"
    return "\ufeff" + words + CONTRACTIONS + edges + long_runs() + random_sequences(1, 20000) + every_character()


def nasty_lines(count=3000):
    """Texts of their own: words, and drawn ones without ends of lines."""
    lines = WORDS + EMOJI + [" " + word for word in WORDS] + ["", " ", "a", "Hello, world!", "  two  spaces ", "x" * 200]
    lines += [random_sequences(seed, 6) for seed in range(count)]
    return [line.replace("\n", "\u2028").replace("\r", " ") for line in lines]
