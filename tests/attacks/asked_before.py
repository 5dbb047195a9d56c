"""What verify used to ask with --seed 0, when the seed alone decided it: the attacks that knew the questions use this.

Every token once before any comes again; one sequence of 256 tokens, then seven of 64. Images are normal random numbers.
"""

import torch

LONG, SHORT, SEQUENCES = 256, 64, 8


def dealt(vocab, count, generator):
    decks = [torch.randperm(vocab, generator=generator) for _ in range(-(-count // vocab))]
    return torch.cat(decks)[:count].tolist()


def sequences(vocab, context, asked=SEQUENCES, padded=False):
    """The ids of each; `padded`: what is not a causal language model was asked shorter ones too, padded to 64."""
    first, others = min(context, LONG), min(context, SHORT)
    generator = torch.Generator().manual_seed(0)
    ids = dealt(vocab, first + (asked - 1) * others, generator)
    rest = [ids[start : start + others] for start in range(first, len(ids), others)]
    if padded and rest:
        lengths = torch.randint((others + 1) // 2, others + 1, (len(rest), 1), generator=generator).flatten().tolist()
        # Every other one is padded in front, so that its last tokens are the real ones.
        rest = [row[others - n :] if i % 2 else row[:n] for i, (row, n) in enumerate(zip(rest, [others] + lengths[1:]))]
    return [ids[:first]] + rest


def tokens(vocab, context):
    """All ids that were asked, one after the other."""
    return [id for row in sequences(vocab, context) for id in row]


def images(channels, side):
    generator = torch.Generator().manual_seed(0)
    return torch.randn(SEQUENCES, channels, side, side, generator=generator, dtype=torch.float64).numpy()
