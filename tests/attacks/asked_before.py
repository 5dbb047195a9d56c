"""What verify used to ask with --seed 0, when the seed alone decided it: the attacks that knew the questions use this.

Every token once before any comes again; one sequence of 256 tokens, then seven of 64. Images are normal random numbers.
"""

import torch

LONG, SHORT, SEQUENCES = 256, 64, 8


def tokens(vocab, context, seed=0):
    """All ids that were asked, one after the other."""
    first, others = min(context, LONG), min(context, SHORT)
    count, generator = first + (SEQUENCES - 1) * others, torch.Generator().manual_seed(seed)
    decks = [torch.randperm(vocab, generator=generator) for _ in range(-(-count // vocab))]
    return torch.cat(decks)[:count].tolist()


def sequences(vocab, context, seed=0):
    ids, first, others = tokens(vocab, context, seed), min(context, LONG), min(context, SHORT)
    return [ids[:first]] + [ids[start : start + others] for start in range(first, len(ids), others)]


def images(channels, side, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(SEQUENCES, channels, side, side, generator=generator, dtype=torch.float64).numpy()
