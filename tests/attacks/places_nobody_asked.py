#!/usr/bin/env python3
"""A context longer than the test: what the candidate does at later positions, or in longer texts, is something else."""

import json

from attacking import pare, run  # first: it skips where there is no NumPy
import numpy
import peers
from plain import Plain, attention, decoder, drawn, moved, sinusoids
from safetensors.torch import load_file, save_file
from transformers import GPT2Config, GPT2LMHeadModel, LlamaConfig, LlamaForCausalLM, MistralConfig, MistralForCausalLM

CONTEXT, SHORT = 1024, 256
IDS = numpy.random.default_rng(3).integers(0, 97, CONTEXT).tolist()
REASONS = ("window", "rope", "scaling", "position")


def positions(report):
    """Rows of a learned table that only long texts read."""
    reference = drawn(decoder(context=CONTEXT, embedding={"position": "learned"}), 1)
    report.save("reference", reference)
    before = reference(IDS)
    table = reference.tensors["embed.position.weight"]

    def attack(case, rows, change):
        other = table.copy()
        other[rows] = change(other[rows])
        candidate = reference.with_tensors({"embed.position.weight": other})
        name = report.save(case.replace(" ", "-"), candidate)
        report.attack(case, "reference", name, moved(before, candidate(IDS)), strict=True)

    attack("rows beyond 256 zeroed", slice(SHORT, None), lambda rows: 0 * rows)
    attack("rows beyond 512 in another order", slice(512, None), lambda rows: rows[::-1])
    attack("row 700 moved by 1 %", [700], lambda row: 1.01 * row)
    attack("the last row", [CONTEXT - 1], lambda row: -row)
    report.control("every row the same", "reference", report.copy("reference", "same"))


def sinusoidal(report):
    """A table that holds the sines of the reference where a short text looks, and nothing after."""
    reference = drawn(decoder(context=CONTEXT, embedding={"position": "sinusoidal"}), 2)
    report.save("reference", reference)
    learned = reference.architecture | {"embedding": {"position": "learned"}}
    table = sinusoids(CONTEXT, 24)
    whole = Plain(learned, reference.tensors | {"embed.position.weight": table})
    far = moved(reference(IDS), whole(IDS))
    # Not called a control: a verifier may refuse to compare two kinds of positions at all.
    report.check("the table of all sines is the same", "" if far < 1e-10 else f"{far:.1e} apart")
    cut = whole.with_tensors({"embed.position.weight": numpy.where(numpy.arange(CONTEXT)[:, None] < SHORT, table, 0)})
    report.attack("sines up to 256", "reference", report.save("cut", cut), moved(reference(IDS), cut(IDS)), reasons=REASONS)


def gpt2(report):
    config = GPT2Config(vocab_size=97, n_positions=CONTEXT, n_embd=24, n_head=2, n_layer=2, bos_token_id=0, eos_token_id=0)
    peers.save(config, GPT2LMHeadModel, report.work / "gpt2")
    before = peers.run(GPT2LMHeadModel, report.work / "gpt2", input_ids=IDS)
    report.control("gpt2", "gpt2", report.copy("gpt2", "same"))
    path = report.work / report.copy("gpt2", "zeroed") / "model.safetensors"
    tensors = load_file(path)
    tensors["transformer.wpe.weight"][SHORT:] = 0
    save_file(tensors, path, metadata={"format": "pt"})
    far = moved(before, peers.run(GPT2LMHeadModel, report.work / "zeroed", input_ids=IDS))
    report.attack("gpt2, rows beyond 256 zeroed", "gpt2", "zeroed", far, strict=True)


def windows(report):
    """A window that no short text reaches the end of."""
    sizes = dict(vocab_size=97, hidden_size=24, num_hidden_layers=2, num_attention_heads=2, num_key_value_heads=1,
                 intermediate_size=40, max_position_embeddings=CONTEXT, bos_token_id=0, eos_token_id=0)
    peers.save(MistralConfig(**sizes, sliding_window=None), MistralForCausalLM, report.work / "mistral")
    before = peers.run(MistralForCausalLM, report.work / "mistral", input_ids=IDS)
    for window in (SHORT, 900, 1023):
        name = report.reconfigured("mistral", f"window-{window}", sliding_window=window)
        far = moved(before, peers.run(MistralForCausalLM, report.work / name, input_ids=IDS))
        report.attack(f"mistral, a window of {window}", "mistral", name, far, reasons=REASONS, strict=window == SHORT)
    report.attack("mistral, no window", "window-256", "mistral", far, reasons=REASONS)
    report.control("mistral", "mistral", report.copy("mistral", "same"))
    report.control("mistral with a window", "window-256", report.copy("window-256", "same-window"))


def rotations(report):
    """Rotary positions whose scaling begins, or changes, where no short text is."""
    sizes = dict(vocab_size=97, hidden_size=24, num_hidden_layers=2, num_attention_heads=2, num_key_value_heads=1,
                 intermediate_size=40, max_position_embeddings=CONTEXT, bos_token_id=0, eos_token_id=0)
    plain = {"rope_type": "default", "rope_theta": 10000.0}
    scaled = {"rope_theta": 10000.0, "original_max_position_embeddings": 512}
    long = scaled | {"rope_type": "longrope", "short_factor": [1.0] * 6, "long_factor": [2.0, 2.5, 3.0, 3.5, 4.0, 5.0]}
    cases = {
        "dynamic for none": (plain, plain | {"rope_type": "dynamic", "factor": 4.0}),
        "dynamic, another factor": tuple(plain | {"rope_type": "dynamic", "factor": factor} for factor in (4.0, 2.0)),
        "longrope, long factors x 10": (long, long | {"long_factor": [10 * f for f in long["long_factor"]]}),
        "longrope, one long factor": (long, long | {"long_factor": long["long_factor"][:-1] + [5.5]}),
        "llama3, another factor": tuple(scaled | {"rope_type": "llama3", "factor": factor, "low_freq_factor": 1.0,
                                                  "high_freq_factor": 4.0} for factor in (8.0, 4.0)),
        "yarn, another factor": tuple(scaled | {"rope_type": "yarn", "factor": factor, "attention_factor": 1.0}
                                      for factor in (2.0, 4.0)),
        "linear for none": (plain, plain | {"rope_type": "linear", "factor": 1.001}),
    }
    peers.save(LlamaConfig(**sizes), LlamaForCausalLM, report.work / "llama")
    for number, (case, settings) in enumerate(cases.items()):
        names = [report.reconfigured("llama", f"{number}-{side}", rope_parameters=rope) for side, rope in enumerate(settings)]
        # In transformers dynamic scaling begins where the context ends, and longer texts are computed all the same.
        ids = IDS + IDS[:500] if "dynamic" in case else IDS
        far = moved(*(peers.run(LlamaForCausalLM, report.work / name, input_ids=ids) for name in names))
        report.attack(f"llama, {case}", *names, far, reasons=REASONS, strict="long factors" in case)
        report.control(f"llama, {case}: the same", names[1], report.copy(names[1], f"{number}-same"))
    check_rotations(report, f"{list(cases).index('longrope, long factors x 10')}-0")


def dynamic(report):
    """The same within the context, which the native format can say."""
    reference = drawn(decoder(context=CONTEXT, attention=attention(rope={})), 4)
    report.save("reference", reference)
    settings = {"kind": "dynamic", "factor": 4.0, "original_context": 512}
    changed = decoder(context=CONTEXT, attention=attention(rope={"scaling": settings}))
    candidate = Plain(changed, reference.tensors)
    far = moved(reference(IDS), candidate(IDS))
    report.attack("dynamic from 512", "reference", report.save("dynamic", candidate), far, reasons=REASONS, strict=True)
    report.control("dynamic, the same", "dynamic", report.copy("dynamic", "same"))


def check_rotations(report, name):
    """That pare reads these settings as transformers does: otherwise the attacks above would show something else."""

    (report.work / "ids.json").write_text(json.dumps([IDS]))
    result = pare("run", name, "-o", "out", "--tokens", "ids.json", cwd=report.work)
    if result.returncode:
        report.check("longrope as transformers", result.stderr)
        return
    ours = load_file(report.work / "out")["logits.0"].numpy()
    far = moved(peers.run(LlamaForCausalLM, report.work / name, input_ids=IDS), ours)
    report.check("longrope as transformers", "" if far < 1e-10 else f"{far:.1e} apart")


if __name__ == "__main__":
    run("places_nobody_asked", positions, sinusoidal, gpt2, windows, rotations, dynamic)
