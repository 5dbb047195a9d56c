#!/usr/bin/env python3
"""The candidate's config asks for less than the reference can do, and hides behind it what it does otherwise."""

from attacking import run  # first: it skips where there is no NumPy
import numpy
import asked_before
import peers
from plain import Plain, attention, decoder, drawn, farthest, moved, shapes_of
from safetensors.torch import load_file, save_file
from transformers import BertConfig, BertForMaskedLM, RobertaConfig, RobertaForMaskedLM

REASONS = ("context", "types", "vocabulary", "padding", "mask", "window")
IDS = [list(range(5, 25)), list(range(60, 90))]


def with_other_scores(model, **architecture):
    """Every query and key drawn anew; rows of the position table that the new context has no use for are gone."""
    other = drawn(model.architecture, 99)
    scores = {n: other.tensors[n] for n in model.tensors if ".query." in n or ".key." in n}
    return cut(model.with_tensors(scores), **architecture)


def cut(model, **architecture):
    """The same tensors under a changed architecture, tables no longer than that asks for."""
    changed = model.architecture | architecture
    return Plain(changed, {name: model.tensors[name][: shape[0]] for name, shape in shapes_of(changed).items()})


def context(report):
    """With one token in the test, attention has nothing to choose: every query and key may be anything."""
    for position, settings in (("learned", {}), ("none", {"rope": {}}), ("sinusoidal", {})):
        reference = drawn(decoder(attention=attention(**settings), embedding={"position": position}), 1)
        report.save(position, reference)
        far = farthest(reference, with_other_scores(reference), IDS)
        for length in (1, 2):
            name = report.save(f"{position}-{length}", with_other_scores(reference, context=length))
            report.attack(f"{position} positions, other scores, context {length}", position, name, far, reasons=REASONS)
        half = report.save(f"{position}-half", cut(reference, context=32))
        # The same on what it takes: of longer texts it makes no promise, and the reference does.
        report.attack(f"{position} positions, half the context", position, half, numpy.inf, reasons=REASONS)
        report.control(f"{position} positions, all of the context", position, report.copy(position, f"{position}-same"))


def longer(report):
    """A candidate that can take more than the reference is the same on all that the reference can take."""
    for position, settings in (("learned", {}), ("none", {"rope": {}})):
        long = drawn(decoder(context=128, attention=attention(**settings), embedding={"position": position}), 1)
        short = cut(long, context=64)
        report.control(f"{position} positions, twice the context", report.save(f"{position}-short", short),
                       report.save(f"{position}-long", long), farthest(short, long, IDS))


def settings_under_context_one(report):
    """What the shortest test hides besides: the mask, a window, the rotation."""
    base = decoder(attention=attention(rope={}))
    reference = drawn(base, 2)
    report.save("reference", reference)
    for what, settings in (("a full mask", {"mask": "full"}), ("a window", {"window": 1}), ("theta", {"rope": {"theta": 3}})):
        for length in (64, 1):
            changed = decoder(context=length, attention=attention(**{"rope": {}, **settings}))
            candidate = Plain(changed, reference.tensors)
            far = farthest(reference, Plain(changed | {"context": 64}, reference.tensors), IDS)
            name = report.save(f"{what}-{length}", candidate)
            report.attack(f"{what}, context {length}", "reference", name, far, reasons=REASONS + ("theta", "rope"))


def types(report):
    """A row of token types that the candidate does not have."""
    encoder = {"task": "masked_lm", "attention": attention(mask="full"), "embedding": {"position": "learned", "types": 3}}
    reference = drawn(decoder(**encoder), 3)
    fewer = reference.architecture | {"embedding": {"position": "learned", "types": 1}}
    candidate = Plain(fewer, reference.tensors | {"embed.type.weight": reference.tensors["embed.type.weight"][:1]})
    report.save("reference", reference)
    both = numpy.arange(20) % 2
    without = candidate.with_tensors({"embed.type.weight": numpy.repeat(candidate.tensors["embed.type.weight"], 3, 0)})
    far = moved(reference(IDS[0], both), without(IDS[0], both))
    report.attack("fewer types", "reference", report.save("fewer", candidate), far, reasons=REASONS)
    none = Plain(reference.architecture | {"embedding": {"position": "learned"}},
                 {n: t for n, t in reference.tensors.items() if n != "embed.type.weight"}
                 | {"embed.token.weight": reference.tensors["embed.token.weight"] + reference.tensors["embed.type.weight"][0]})
    far = moved(reference(IDS[0], both), none(IDS[0]))
    report.attack("no types", "reference", report.save("none", none), far, reasons=REASONS)
    report.control("all types", "reference", report.copy("reference", "same"))


def vocabulary(report):
    reference = drawn(decoder(embedding={"position": "learned"}), 4)
    report.save("reference", reference)
    for rows in (90, 96):
        candidate = cut(reference, vocab=rows)
        report.attack(f"{rows} of 97 tokens", "reference", report.save(f"first-{rows}", candidate), numpy.inf, reasons=REASONS)


def padding(report):
    """RoBERTa counts positions over the tokens that are not padding, so another padding id moves them all."""
    config = RobertaConfig(vocab_size=60, hidden_size=24, num_hidden_layers=2, num_attention_heads=2, intermediate_size=40,
                           max_position_embeddings=40, type_vocab_size=1, pad_token_id=1, bos_token_id=0, eos_token_id=2)
    peers.save(config, RobertaForMaskedLM, report.work / "roberta")
    ids = [0, 7, 5, 9, 5, 11, 13, 2]
    before = peers.run(RobertaForMaskedLM, report.work / "roberta", input_ids=ids)
    report.control("the same padding", "roberta", report.copy("roberta", "same"))
    other = report.reconfigured("roberta", "other-id", pad_token_id=5)
    far = moved(before, peers.run(RobertaForMaskedLM, report.work / other, input_ids=ids))
    report.attack("another padding id", "roberta", other, far, reasons=REASONS)

    rare = next(id for id in range(3, 5000) if id not in set(asked_before.tokens(5000, 40)))
    config.vocab_size, ids[2] = 5000, rare
    peers.save(config, RobertaForMaskedLM, report.work / "large")
    before = peers.run(RobertaForMaskedLM, report.work / "large", input_ids=ids)
    other = report.reconfigured("large", "rare-id", pad_token_id=rare)
    far = moved(before, peers.run(RobertaForMaskedLM, report.work / other, input_ids=ids))
    report.attack("a rare token for padding", "large", other, far, reasons=REASONS)


def bert(report):
    """The same in a family: fewer types and a shorter context than the reference's."""
    sizes = dict(vocab_size=60, hidden_size=24, num_hidden_layers=2, num_attention_heads=2, intermediate_size=40)
    config = BertConfig(**sizes, max_position_embeddings=40, type_vocab_size=2)
    peers.save(config, BertForMaskedLM, report.work / "bert")
    ids = dict(input_ids=list(range(5, 17)), token_type_ids=[0] * 6 + [1] * 6)
    before = peers.run(BertForMaskedLM, report.work / "bert", **ids)

    def with_rows(name, table, rows, **keys):
        report.reconfigured("bert", name, **keys)
        path = report.work / name / "model.safetensors"
        tensors = load_file(path)
        tensors[f"bert.embeddings.{table}.weight"] = tensors[f"bert.embeddings.{table}.weight"][:rows].clone()
        save_file(tensors, path, metadata={"format": "pt"})
        return name

    one = with_rows("one-type", "token_type_embeddings", 1, type_vocab_size=1)
    first = peers.run(BertForMaskedLM, report.work / one, input_ids=ids["input_ids"], token_type_ids=[0] * 12)
    report.attack("bert, one type", "bert", one, moved(before, first), reasons=REASONS)
    short = with_rows("short", "position_embeddings", 1, max_position_embeddings=1)
    report.attack("bert, context 1", "bert", short, numpy.inf, reasons=REASONS)
    report.control("bert", "bert", report.copy("bert", "same"))


if __name__ == "__main__":
    run("candidate_shrinks_its_test", context, longer, settings_under_context_one, types, vocabulary, padding, bert)
