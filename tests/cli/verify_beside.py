#!/usr/bin/env python3
"""What `pare verify` says beside its verdict: limits of one's own, costs tensor by tensor, a summary, logits of other programs, near misses."""

import json
import pathlib
import random
import shutil
import struct
import sys
import tempfile

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent))
sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "error"))
from files import read_tensors, write_tensors
from report import ROOT, Report, ended, expect, pare

WIDTH, VOCAB, HEADS, INNER, LAYERS, CONTEXT = 64, 96, 2, 96, 2, 32
ARCHITECTURE = {
    "width": WIDTH, "vocab": VOCAB, "context": CONTEXT, "head": {"tied": False},
    "blocks": [{"repeat": LAYERS, "attention": {"heads": HEADS, "head_width": 32, "rope": {}, "norm": {"kind": "rms"}},
                "mlp": {"width": INNER, "activation": "silu", "gated": True, "norm": {"kind": "rms"}}}],
    "final_norm": {"kind": "rms"},
}
SEQUENCES = [[1, 2, 3, 4, 5], [6, 7], [8, 9, 10, 11, 12], [13], [14, 15], [16, 17, 18, 19, 95]]  # run by length: another order
MATRIX = "blocks.1.mlp.down.weight"
SUMMARY = "**pare verify: "


def verify(work, *arguments):
    return pare("verify", *arguments, "--threads", "1", cwd=work)


def verified(work, *arguments):
    """Its document, which is printed also where it fails."""
    result = verify(work, *arguments, "--json")
    try:
        return json.loads(result.stdout)
    except json.JSONDecodeError:
        return {"verdict": f"no document: {result.stderr.strip()[-300:]}"}


def floats(tensor):
    form, size = {"F32": ("f", 4), "F64": ("d", 8)}[tensor[0]]
    return list(struct.unpack(f"<{len(tensor[2]) // size}{form}", tensor[2]))


def in_float32(shape, values):
    return "F32", shape, struct.pack(f"<{len(values)}f", *values)


def in_bfloat16(shape, values):
    """To the nearest, of two the even one."""
    bits = struct.unpack(f"<{len(values)}I", struct.pack(f"<{len(values)}f", *values))
    return "BF16", shape, struct.pack(f"<{len(values)}H", *((b + 0x7FFF + (b >> 16 & 1)) >> 16 for b in bits))


def copied(work, name, change=lambda tensors: None, store=in_float32):
    """A copy of 'model' with its tensors (name -> [shape, values]) changed, and stored in a type."""
    shutil.copytree(work / "model", work / name)
    tensors = {key: [tensor[1], floats(tensor)] for key, tensor in read_tensors(work / name / "model.safetensors").items()}
    change(tensors)
    write_tensors(work / name / "model.safetensors", {key: store(*tensor) for key, tensor in tensors.items()})
    return name


def noisy(name, share):
    """Its entries moved by this share of the usual one, each by a number of its own."""

    def change(tensors):
        drawn = random.Random(3)
        values = tensors[name][1]
        usual = (sum(value * value for value in values) / len(values)) ** 0.5
        tensors[name][1] = [value + share * usual * drawn.gauss(0, 1) for value in values]

    return change


# ---- a GGUF file in plain Python, as the converter of llama.cpp writes it; tests/conformance has the other types


def half(value):
    return struct.unpack("<e", struct.pack("<e", value))[0]


def in_q8_0(values, wider=1, level_of=lambda ratio: min(127, max(-128, round(ratio)))):
    """With scales that are so many times what they should be."""
    data = b""
    for at in range(0, len(values), 32):
        block = values[at : at + 32]
        scale = half(wider * max(map(abs, block)) / 127)
        data += struct.pack("<e32b", scale, *(level_of(value / scale) if scale else 0 for value in block))
    return data


def key(name, kind, value):
    text = name.encode()
    form = {4: "<I", 6: "<f"}
    data = struct.pack("<Q", len(value)) + value if kind == 8 else struct.pack(form[kind], value)
    return struct.pack("<Q", len(text)) + text + struct.pack("<I", kind) + data


def interleaved(values, columns):
    """Rows of each head of 32: the first half and the second half by turns."""
    rows = [values[at : at + columns] for at in range(0, len(values), columns)]
    order = [head + i // 2 + i % 2 * 16 for head in range(0, len(rows), 32) for i in range(32)]
    return [value for row in order for value in rows[row]]


def write_gguf(path, tensors, plain=(), quantisers={}):
    """Matrices in Q8_0, but for those that stay in float32, or have another quantiser."""
    places = {"embed.token.weight": "token_embd.weight", "norm.weight": "output_norm.weight", "head.weight": "output.weight"}
    for n in range(LAYERS):
        for ours, theirs in (("attention.norm", "attn_norm"), ("attention.query", "attn_q"), ("attention.key", "attn_k"),
                             ("attention.value", "attn_v"), ("attention.output", "attn_output"), ("mlp.norm", "ffn_norm"),
                             ("mlp.gate", "ffn_gate"), ("mlp.up", "ffn_up"), ("mlp.down", "ffn_down")):
            places[f"blocks.{n}.{ours}.weight"] = f"blk.{n}.{theirs}.weight"
    keys = [key("general.architecture", 8, b"llama"), key("llama.block_count", 4, LAYERS), key("llama.context_length", 4, CONTEXT),
            key("llama.embedding_length", 4, WIDTH), key("llama.feed_forward_length", 4, INNER), key("llama.attention.head_count", 4, HEADS),
            key("llama.attention.head_count_kv", 4, HEADS), key("llama.attention.layer_norm_rms_epsilon", 6, 1e-5),
            key("llama.rope.dimension_count", 4, 32), key("llama.rope.freq_base", 6, 10000.0), key("llama.vocab_size", 4, VOCAB)]
    names, data = b"", b""
    for ours, (shape, values) in tensors.items():
        blocks = len(shape) == 2 and ours not in plain
        if ".query." in ours or ".key." in ours:
            values = interleaved(values, shape[1])
        text = places[ours].encode()
        names += struct.pack("<Q", len(text)) + text + struct.pack(f"<I{len(shape)}Q", len(shape), *reversed(shape))
        names += struct.pack("<IQ", 8 if blocks else 0, len(data))
        data += quantisers.get(ours, in_q8_0)(values) if blocks else struct.pack(f"<{len(values)}f", *values)
        data += bytes(-len(data) % 32)
    header = b"GGUF" + struct.pack("<IQQ", 3, len(tensors), len(keys)) + b"".join(keys) + names
    path.write_bytes(header + bytes(-len(header) % 32) + data)


def gguf_of(work, name, change=lambda tensors: None, plain=(), quantisers={}):
    tensors = {key: [tensor[1], floats(tensor)] for key, tensor in read_tensors(work / "model" / "model.safetensors").items()}
    change(tensors)
    write_gguf(work / name, tensors, plain, quantisers)
    return name


# ---- limits


def check_limits(report, work):
    given = ["--tokens", "ids.json"]
    metrics = verified(work, "model", "blocks.gguf", *given)["metrics"]
    for flag, value, words in (("--max-kl", metrics["mean_kl_nats"], "the mean KL is"),
                               ("--max-error", metrics["max_relative_logit_error"], "the largest relative error is")):
        beyond = verify(work, "model", "blocks.gguf", *given, flag, value / 2)
        report.check(f"{flag}, exceeded", ended(beyond, 3, [flag, words, f"{value:.3g}", f"allowed {value / 2:.3g}", "verdict: quantised"]))
        report.check(f"{flag}, kept", ended(verify(work, "model", "blocks.gguf", *given, flag, value * 2), 0, ["verdict: quantised"]))
        report.check(f"{flag}, reached", ended(verify(work, "model", "blocks.gguf", *given, flag, repr(value)), 0))
        report.check(f"{flag} 0, and a copy", ended(verify(work, "model", "copy", flag, "0"), 0, ["verdict: identical"]))
        document = verified(work, "model", "blocks.gguf", *given, flag, value / 2)
        found = document["verdict"], document.get("error", {}).get("kind")
        report.check(f"{flag}, in the document", expect(found, ("quantised", "verification_failed")))
        for wrong in ("-1", "much", "nan"):
            report.check(f"{flag} {wrong}", ended(verify(work, "model", "copy", flag, wrong), 1, [flag]))
    # A limit that is kept makes no right model of a wrong one.
    report.check("a high limit, and another model", ended(verify(work, "model", "other", "--max-kl", "1000", "--max-error", "1e6"), 3, ["verdict: different", "is not the same function"]))
    encoder = ARCHITECTURE | {"task": "encoder"}
    del encoder["head"]
    (work / "encoder.json").write_text(json.dumps(encoder))
    report.check("init encoder", ended(pare("init", "encoder.json", "-o", "encoder", cwd=work)))
    report.check("--max-kl where nothing is chosen", ended(verify(work, "encoder", "encoder", "--max-kl", "1"), 1, ["--max-kl", "no KL"]))


# ---- tensor by tensor


def check_by_tensor(report, work):
    report.check("--by-tensor of nothing given", ended(verify(work, "model", "blocks.gguf", "--by-tensor"), 1, ["--by-tensor: on which inputs?", "--text or --tokens"]))
    report.check("--by-tensor of random ones", ended(verify(work, "model", "blocks.gguf", "--by-tensor", "--random", "4"), 1, ["--by-tensor: on which inputs?"]))
    shown = verify(work, "model", "blocks.gguf", "--by-tensor", "--tokens", "ids.json")
    wide = [line for line in shown.stdout.splitlines() if len(line) > 80]
    report.check("--by-tensor", ended(shown, 0, ["this tensor alone costs", "mean KL, nats", MATRIX, "verdict: quantised"]) or (f"wider than 80: {wide}" if wide else ""))
    document = verified(work, "model", "blocks.gguf", "--by-tensor", "--tokens", "ids.json")
    costs = document["tensor_costs"]
    means = [cost["mean_kl"]["value"] for cost in costs]
    report.check("the largest cost first", "" if means == sorted(means, reverse=True) and min(means) > 0 else f"{means}")
    differing = {tensor["tensor"] for tensor in document["quantisation"]["tensors"] if tensor["how"] != "same"}
    matrices = {name for name, tensor in read_tensors(work / "model" / "model.safetensors").items() if len(tensor[1]) == 2}
    report.check("each tensor that differs, once", expect((sorted(cost["tensor"] for cost in costs), differing), (sorted(matrices), matrices)))
    fine = all(cost["max_kl"] >= cost["mean_kl"]["value"] and cost["mean_kl"]["error"] > 0 for cost in costs)
    report.check("no mean above its largest", "" if fine else f"{costs}")
    # Costs of small changes add up, but for what they have in common.
    whole = document["metrics"]["mean_kl_nats"]
    report.check("all costs are about what the model costs", "" if whole / 3 < sum(means) < whole * 3 else f"{sum(means)} and {whole}")
    part = verified(work, "model", "few.gguf", "--by-tensor", "--tokens", "ids.json")
    report.check("what is stored as it was costs nothing", expect({cost["tensor"] for cost in part["tensor_costs"]}, {MATRIX, "head.weight"}))
    alone = verified(work, "model", "one.gguf", "--tokens", "ids.json")
    both = {cost["tensor"]: cost for cost in costs}[MATRIX], {cost["tensor"]: cost for cost in part["tensor_costs"]}[MATRIX]
    near = all(abs(cost["mean_kl"]["value"] / alone["metrics"]["mean_kl_nats"] - 1) < 1e-6 for cost in both)
    report.check("what a model with this tensor alone costs", "" if near else f"{both}, {alone['metrics']}")
    for candidate in ("copy", "half"):
        document = verified(work, "model", candidate, "--by-tensor", "--tokens", "ids.json")
        report.check(f"--by-tensor, {candidate}", expect(document.get("tensor_costs"), []))


# ---- the summary


def table_problem(text):
    """Rows of a table have as many cells as its head; a `|` within one is escaped."""
    cells = 0
    for line in text.splitlines():
        if not line.startswith("|"):
            cells = 0
            continue
        found = line.replace("\\\\", "").replace("\\|", "").count("|")
        cells = cells or found
        if found != cells or not line.endswith("|"):
            return f"{found - 1} cells, expected {cells - 1}: {line}"
    return ""


def check_summary(report, work):
    path = work / "summary.md"
    result = verify(work, "model", "copy", "--summary", "summary.md")
    text = path.read_text() if path.exists() else ""
    report.check("--summary", ended(result) or ("" if text.startswith(SUMMARY + "identical**\n") else text) or table_problem(text))
    report.check("beside what is printed", expect(result.stdout, verify(work, "model", "copy").stdout))
    result = verify(work, "model", "other", "--tokens", "ids.json", "--summary", "summary.md")
    text = path.read_text()
    report.check("--summary where it fails, in place of an earlier one", ended(result, 3, ["verification failed"]) or ("" if text.startswith(SUMMARY + "different**\n") and "not the same function" in text else text) or table_problem(text))
    result = verify(work, "model", "blocks.gguf", "--tokens", "ids.json", "--summary", "summary.md", "--max-kl", "1e-12", "--json")
    text = path.read_text()
    words = ("| mean KL, nats | ", "| perplexity of the candidate | ", " ± ", "--max-kl: ", "blocks.gguf")
    report.check("--summary beyond a limit", ended(result, 3) or ("" if text.startswith(SUMMARY + "quantised, and refused**\n") and all(word in text for word in words) else text) or table_problem(text))
    path.write_text("")
    report.check("an empty file is replaced", ended(verify(work, "model", "copy", "--summary", "summary.md")) or ("" if path.read_text().startswith(SUMMARY) else "it was not"))
    for name, content in (("notes.md", "# Notes\n"), ("one.md", "*"), ("binary.md", "\0\1\2"), ("late.md", " " + SUMMARY)):
        (work / name).write_text(content)
        result = verify(work, "model", "copy", "--summary", name)
        report.check(f"--summary {name}", ended(result, 1, ["--summary", name, "no summary of pare"]) or expect((work / name).read_text(), content))
    report.check("--summary in no folder", ended(verify(work, "model", "copy", "--summary", "nowhere/summary.md"), 1, ["nowhere/summary.md"]))
    report.check("--summary that is a folder", ended(verify(work, "model", "copy", "--summary", "copy"), 1, ["'copy'"]))
    odd = copied(work, "a|b`<c>\\|d", noisy(MATRIX, 0.5))
    result = verify(work, "model", odd, "--tokens", "ids.json", "--summary", "odd|.md")
    text = (work / "odd|.md").read_text()
    report.check("a `|` in a path", ended(result, 3) or table_problem(text) or ("" if "a\\|b" in text and "<c>" not in text else text))
    result = verify(work, "model", gguf_of(work, "in|blocks.gguf"), "--summary", "in-blocks.md")
    report.check("a `|` in the name of a file", ended(result) or table_problem((work / "in-blocks.md").read_text()))
    result = verify(work, "model", "--logits", "moved", "--tokens", "ids.json", "--summary", "summary.md")
    text = path.read_text()
    report.check("--summary of logits", ended(result, 3) or ("" if text.startswith(SUMMARY + "different**\n") and "| candidate |" not in text and "'' is" not in text else text) or table_problem(text))


# ---- logits of another program


def run_logits(work, model, name, dtype):
    return pare("run", model, "-o", name, "--tokens", "ids.json", "--dtype", dtype, "--threads", "1", cwd=work)


def check_logits(report, work):
    given = ["--tokens", "ids.json"]
    rows = read_tensors(work / "m64")
    stacked = lambda tensors: b"".join(tensors[f"logits.{n}"][2] for n in range(len(tensors)))  # noqa: E731
    (work / "even.json").write_text(json.dumps([SEQUENCES[n] for n in (0, 2, 5)]))
    write_tensors(work / "even", {"logits": ("F64", [3, 5, VOCAB], b"".join(rows[f"logits.{n}"][2] for n in (0, 2, 5)))})
    write_tensors(work / "swapped", {"logits": ("F64", [3, 5, VOCAB], b"".join(rows[f"logits.{n}"][2] for n in (2, 0, 5)))})
    for name, dtype, verdict in (("m64", "float64", "equivalent"), ("m32", "float32", "within_noise")):
        document = verified(work, "model", "--logits", name, *given)
        found = document["verdict"], document.get("compute_dtype"), document.get("candidate"), document.get("tensor_costs")
        report.check(f"logits in {dtype}", expect(found, (verdict, dtype, None, [])))
        report.check(f"logits in {dtype}, told", expect(document.get("logits", {}).get("path"), name) or ("" if document["statistics"]["rows"] == 20 else f"{document['statistics']}"))
    report.check("logits, as text", ended(verify(work, "model", "--logits", "m64", *given), 0, ["6 sequences, 20 tokens", "verdict: equivalent on what was exercised"], ["''"]))
    report.check("one tensor of all sequences", ended(verify(work, "model", "--logits", "even", "--tokens", "even.json"), 0, ["verdict: equivalent"]))
    report.check("two sequences swapped", ended(verify(work, "model", "--logits", "swapped", "--tokens", "even.json"), 3, ["verdict: different", "first divergence: logits of sequence "]))
    # What was computed in float32 is no more than that, whatever it is stored in.
    write_tensors(work / "widened", {key: ("F64", t[1], struct.pack(f"<{len(t[2]) // 4}d", *floats(t))) for key, t in read_tensors(work / "m32").items()})
    report.check("float32 stored as float64", ended(verify(work, "model", "--logits", "widened", *given), 3, ["verdict: different"]))
    report.check("and said to be float32", ended(verify(work, "model", "--logits", "widened", *given, "--dtype", "float32"), 0, ["verdict: within_noise"]))
    for number, row in ((2, 1), (3, 0), (5, 4)):
        tensors = read_tensors(work / "m64")
        values, drawn = floats(tensors[f"logits.{number}"]), random.Random(number)
        for column in range(row * VOCAB, (row + 1) * VOCAB):
            values[column] += 1e-3 * drawn.gauss(0, 1)
        tensors[f"logits.{number}"] = ("F64", tensors[f"logits.{number}"][1], struct.pack(f"<{len(values)}d", *values))
        write_tensors(work / "moved", tensors)
        moved = verify(work, "model", "--logits", "moved", *given)
        report.check(f"row {row} of sequence {number} moved", ended(moved, 3, ["verdict: different", f"first divergence: logits of sequence {number}\n", "moved"], ["''"]))
        document = verified(work, "model", "--logits", "moved", *given)
        told = document.get("first_divergence") or {}
        report.check(f"row {row} of sequence {number} moved, as JSON", expect((document["verdict"], told.get("tap"), told.get("sequence")), ("different", "logits", number)))
    report.check("logits of another model", ended(verify(work, "other", "--logits", "m64", *given), 3, ["verdict: different"]))
    report.check("logits of a quantised model, within a limit", ended(verify(work, "blocks.gguf", "--logits", "q64", *given), 0, ["verdict: equivalent"]))
    constant = {key: ("F64", t[1], struct.pack(f"<{len(t[2]) // 8}d", *(v + 7 for v in floats(t)))) for key, t in rows.items()}
    write_tensors(work / "constant", constant)
    report.check("other logits, the same probabilities", ended(verify(work, "model", "--logits", "constant", *given), 3, ["verdict: different"]))
    # One sequence in few digits forgives the others nothing, wherever it stands.
    for number in (1, 3, 5):
        tensors = rows | {f"logits.{number}": ("F16", rows[f"logits.{number}"][1], struct.pack(f"<{len(rows[f'logits.{number}'][2]) // 8}e", *floats(rows[f"logits.{number}"])))}
        moved = floats(rows["logits.0"])
        moved[10] += 1e-4
        write_tensors(work / "mixed", tensors | {"logits.0": ("F64", rows["logits.0"][1], struct.pack(f"<{len(moved)}d", *moved))})
        code = verify(work, "model", "--logits", "mixed", *given).returncode
        report.check(f"sequence {number} in float16, and a row in float64 that is off", "" if code in (1, 3) else f"exit code {code}")
    short = [SEQUENCES[0][:-1] + [7], *SEQUENCES[1:]]
    (work / "short.json").write_text(json.dumps(short))
    report.check("logits of other tokens", ended(verify(work, "model", "--logits", "m64", "--tokens", "short.json"), 3, ["logits of sequence 0\n"]))
    check_wrong_logits(report, work, rows, stacked)


def check_wrong_logits(report, work, rows, stacked):
    narrow = {key: ("F64", [t[1][0], VOCAB - 1], t[2][: t[1][0] * (VOCAB - 1) * 8]) for key, t in rows.items()}
    integers = {key: ("I32", t[1], bytes(len(t[2]) // 2)) for key, t in rows.items()}
    raw = (work / "m64").read_bytes()
    nothing = {key: (t[0], t[1], struct.pack("<d", float("nan")) + t[2][8:]) for key, t in rows.items()}
    cases = {
        "another vocabulary": (narrow, [f"[5, {VOCAB - 1}]", f"[5, {VOCAB}]"]),
        "a sequence missing": ({key: t for key, t in rows.items() if key != "logits.3"}, ["sequence 3", "logits.3"]),
        "a token missing": (rows | {"logits.2": ("F64", [4, VOCAB], rows["logits.2"][2][: 4 * VOCAB * 8])}, ["sequence 2", f"[4, {VOCAB}]", f"[5, {VOCAB}]"]),
        "one row for five tokens": (rows | {"logits.2": ("F64", [VOCAB], rows["logits.2"][2][: VOCAB * 8])}, ["sequence 2", f"[{VOCAB}]", f"[5, {VOCAB}]"]),
        "rows and columns swapped": (rows | {"logits.2": ("F64", [VOCAB, 5], rows["logits.2"][2])}, ["sequence 2", f"[{VOCAB}, 5]"]),
        "integers": (integers, ["I32", "expected floats"]),
        "one of them integers": (rows | {"logits.5": integers["logits.5"]}, ["I32", "expected floats"]),
        "all in one row": ({"logits": ("F64", [20, VOCAB], stacked(rows))}, ["no logits of sequence 0"]),
        "of no such name": ({"answers": rows["logits.0"]}, ["no logits of sequence 0", "'logits.0'"]),
        "no tensors": ({}, ["no logits of sequence 0"]),
        "not a number": (nothing, ["logits.", "nan"]),
        "cut short": (raw[: len(raw) // 2], ["wrong", "ends at byte", "incomplete"]),
        "cut in the header": (raw[:20], ["wrong"]),
        "an empty file": (b"", ["wrong"]),
    }
    for case, (content, words) in cases.items():
        write_tensors(work / "wrong", content) if isinstance(content, dict) else (work / "wrong").write_bytes(content)
        result = verify(work, "model", "--logits", "wrong", "--tokens", "ids.json")
        report.check(f"logits, {case}", ended(result, 1, [*words, "pare: error: "], ["internal"]))
    uses = {
        "both": (["model", "copy", "--logits", "m64", "--tokens", "ids.json"], ["CANDIDATE", "--logits", "not both"]),
        "neither": (["model", "--tokens", "ids.json"], ["CANDIDATE", "--logits", "'model'"]),
        "of nothing": (["model", "--logits", "m64"], ["--logits", "--tokens"]),
        "of random tokens": (["model", "--logits", "m64", "--random", "2"], ["--logits", "--tokens"]),
        "with --by-tensor": (["model", "--logits", "m64", "--tokens", "ids.json", "--by-tensor"], ["--by-tensor", "--logits has none"]),
        "with --modulo-gauge": (["model", "--logits", "m64", "--tokens", "ids.json", "--modulo-gauge"], ["--modulo-gauge", "--logits has none"]),
        "no such file": (["model", "--logits", "nothing", "--tokens", "ids.json"], ["'nothing'", "no such file"]),
        "a folder": (["model", "--logits", "model", "--tokens", "ids.json"], ["'model'", "folder"]),
        "a model's weights": (["model", "--logits", "model/model.safetensors", "--tokens", "ids.json"], ["no logits of sequence 0"]),
    }
    for case, (arguments, words) in uses.items():
        report.check(f"--logits, {case}", ended(verify(work, *arguments), 1, words, ["internal"]))
    limit = verify(work, "model", "--logits", "m32", "--tokens", "ids.json", "--max-kl", "1e-30")
    report.check("--logits and --max-kl", ended(limit, 3, ["--max-kl", "allowed 1e-30"]))
    report.check("--logits and --strict", ended(verify(work, "model", "--logits", "m64", "--tokens", "ids.json", "--strict"), 3, ["--strict"]))


# ---- blocks that say nothing: a step so wide that every weight is within one of anything

def sign(ratio):
    return (ratio > 0) - (ratio < 0)


WIDE = {
    "every level is zero": lambda values: in_q8_0(values, 1270, lambda ratio: 0),
    "every level is zero, barely": lambda values: in_q8_0(values, 130, lambda ratio: 0),
    "levels are signs": lambda values: in_q8_0(values, 400, sign),
    "levels are drawn": lambda values: in_q8_0(values, 1270, lambda ratio, drawn=random.Random(1): drawn.choice((-1, 0, 1))),
    "scales are zero": lambda values: in_q8_0(values, 0),
}


def check_wide_scales(report, work):
    for case, quantiser in WIDE.items():
        candidate = gguf_of(work, "wide.gguf", quantisers={MATRIX: quantiser})
        report.check(f"blocks in which {case}", ended(verify(work, "model", candidate), 3, [MATRIX, "verdict: different"]))
    zeros = copied(work, "zeros", lambda tensors: tensors.update({MATRIX: [tensors[MATRIX][0], [0.0] * len(tensors[MATRIX][1])]}))
    drawn = random.Random(2)
    random_blocks = lambda values: b"".join(struct.pack("<e32b", 1.0, *(drawn.choice((-1, 0, 1)) for _ in range(32))) for _ in range(0, len(values), 32))  # noqa: E731
    candidate = gguf_of(work, "wide.gguf", quantisers={MATRIX: random_blocks})
    report.check("random blocks in place of a matrix of zeros", ended(verify(work, zeros, candidate), 3, [MATRIX, "verdict: different"]))
    candidate = gguf_of(work, "wide.gguf", lambda tensors: tensors.update({MATRIX: [tensors[MATRIX][0], [0.0] * len(tensors[MATRIX][1])]}))
    report.check("a matrix of zeros, in blocks", ended(verify(work, zeros, candidate), 0, ["verdict: quantised"]))


# ---- near misses


def check_near_misses(report, work):
    right = verify(work, "model", "half")
    report.check("an honest copy in bfloat16", ended(right, 0, ["verdict: proved"]))
    document = verified(work, "model", "half")
    report.check("no near miss", expect((document.get("near_misses"), document.get("apart")), ([], [])))
    # The other way round it is another function: the numbers that were rounded away are not in it.
    hint = "each tensor is the candidate's, rounded to bfloat16"
    report.check("the rounded one first", ended(verify(work, "half", "model"), 3, ["verdict: different", hint]))
    report.check("the rounded one first, and another model", ended(verify(work, "half", "other"), 3, ["verdict: different"], [hint]))
    for name in (MATRIX, "blocks.0.attention.query.weight", "embed.token.weight"):
        candidate = copied(work, "noisy-" + name, noisy(name, 0.01), in_bfloat16)
        for extra in ([], ["--tokens", "ids.json"], ["--dtype", "bfloat16"]) if name == MATRIX else ([],):
            result = verify(work, "model", candidate, *extra)
            report.check(f"1 % of noise in {name}, {extra}", ended(result, 3, ["verdict: different", name]))
        document = verified(work, "model", candidate)
        found = [text for text in document["near_misses"] if text.startswith(name + " is off by ")]
        report.check(f"1 % of noise in {name}, as near miss", "" if len(found) == 1 == len(document["near_misses"]) else f"{document['near_misses']}")
        report.check(f"1 % of noise in {name}, apart", expect([tensor["tensor"] for tensor in document["apart"]], [name]) or ("" if 0.005 < document["apart"][0]["relative_error"] < 0.02 else f"{document['apart']}"))
        said = json.dumps(document.get("error"))
        report.check(f"1 % of noise in {name}, in the error", "" if name in said else said)
    check_alone(report, work)


def check_alone(report, work):
    """Numbers of another matrix where attention hardly matters: no row would show it, but no basis changes one matrix alone."""
    query = "blocks.1.attention.query.weight"

    def weak(tensors):
        for name in (query, query.replace("query", "key")):
            tensors[name][1] = [value / 100 for value in tensors[name][1]]

    def weak_and_turned(tensors):
        weak(tensors)
        tensors[query][1] = tensors[query][1][::-1]

    reference = copied(work, "weak", weak)
    report.check("weak, an honest copy", ended(verify(work, reference, copied(work, "weak-half", weak, in_bfloat16)), 0, ["verdict: proved"]))
    candidate = copied(work, "weak-turned", weak_and_turned, in_bfloat16)
    report.check("weak, and another matrix", ended(verify(work, reference, candidate), 3, ["verdict: different", "explained neither by rounding nor by another basis", query, "all else in its block"]))
    report.check("weak, named", expect([text.split(" ")[0] for text in verified(work, reference, candidate)["near_misses"]], [query]))


# ---- the document


def shape_problem(schema, value, where="$"):
    """Names of what is there, as the schema has them; tests/conformance/verify_metrics.py asks jsonschema for all of it."""
    for choice in schema.get("oneOf", []):
        if (choice.get("type") == "null") == (value is None):
            schema = choice
    if "$ref" in schema:
        schema = DEFINITIONS[schema["$ref"].removeprefix("#/$defs/")]
    if isinstance(value, list):
        return "".join(shape_problem(schema["items"], item, f"{where}[{n}]") for n, item in enumerate(value))
    if isinstance(value, dict) and "properties" in schema:
        missing, more = set(schema["required"]) - set(value), set(value) - set(schema["properties"])
        wrong = f"{where} has no {sorted(missing)} and {sorted(more)} more; " if missing or more else ""
        return wrong + "".join(shape_problem(schema["properties"][name], item, f"{where}.{name}") for name, item in value.items() if name not in more)
    return ""


SCHEMA = json.loads((ROOT / "docs" / "json" / "certificate.schema.json").read_text())
DEFINITIONS = SCHEMA["$defs"]
BESIDE = ("quantisation", "apart", "near_misses", "statistics", "tensor_costs")


def check_document(report, work):
    given = ["--tokens", "ids.json"]
    cases = {
        "blocks": ["model", "blocks.gguf", *given, "--by-tensor"],
        "wrong blocks": ["model", "wrong.gguf", *given],
        "random tokens": ["model", "blocks.gguf"],
        "another model": ["model", "other", *given],
        "logits": ["model", "--logits", "m32", *given],
        "a copy": ["model", "copy"],
    }
    documents = {case: verified(work, *arguments) for case, arguments in cases.items()}
    for case, document in documents.items():
        wrong = "".join(shape_problem(SCHEMA["properties"][name], document[name], name) for name in BESIDE if name in document)
        report.check(f"document: {case}", wrong or expect([name for name in BESIDE if name not in document], []) or expect("logits" in document, case == "logits"))
    known = {case: (document["quantisation"] is not None, document["statistics"] is not None, len(document["apart"]) > 0, document["noise_floor"] is not None) for case, document in documents.items()}
    report.check("what each document has", expect(known, {
        "blocks": (True, True, False, False), "wrong blocks": (True, True, False, False), "random tokens": (True, False, False, False),
        "another model": (False, True, True, True), "logits": (False, True, False, True), "a copy": (False, False, False, True)}))
    right, wrong = documents["blocks"]["quantisation"], documents["wrong blocks"]["quantisation"]
    report.check("types", expect(right["types"], f"Q8_0 {7 * LAYERS + 2}, F32 {2 * LAYERS + 1}"))
    report.check("settings", expect(right["settings"], []))
    others = [tensor for tensor in wrong["tensors"] if tensor["how"] == "other"]
    report.check("the wrong tensor", expect([tensor["tensor"] for tensor in others], [MATRIX]) or ("" if others[0]["reason"] and others[0]["wrong"] > 0 else f"{others}"))
    report.check("the wrong tensor, verdict", expect(documents["wrong blocks"]["verdict"], "different"))
    report.check("no reasons but of others", "" if all((tensor["reason"] is None) == (tensor["how"] != "other") for tensor in right["tensors"] + wrong["tensors"]) else "there are")
    report.check("the wrong tensor, named", ended(verify(work, "model", "wrong.gguf"), 3, [f"no quantisation of 'model': {MATRIX}: ", "verdict: different"]))
    report.check("half a step at most", "" if all(0 < tensor["largest_error"] < 0.51 for tensor in right["tensors"] if tensor["how"] == "quantised") else f"{right['tensors']}")


def main():
    report = Report("verify_beside")
    with tempfile.TemporaryDirectory() as folder:
        work = pathlib.Path(folder)
        (work / "a.json").write_text(json.dumps(ARCHITECTURE))
        (work / "ids.json").write_text(json.dumps(SEQUENCES))
        for name, seed in (("model", 1), ("other", 2)):
            report.check(f"init {name}", ended(pare("init", "a.json", "-o", name, "--generic", "--seed", seed, cwd=work)))
        shutil.copytree(work / "model", work / "copy")
        copied(work, "half", store=in_bfloat16)
        every = set(read_tensors(work / "model" / "model.safetensors"))
        gguf_of(work, "blocks.gguf")
        gguf_of(work, "few.gguf", plain=every - {MATRIX, "head.weight"})
        gguf_of(work, "one.gguf", plain=every - {MATRIX})
        gguf_of(work, "plain.gguf", plain=every)
        gguf_of(work, "wrong.gguf", noisy(MATRIX, 0.02))
        report.check("what our file holds", ended(verify(work, "model", "plain.gguf"), 0, ["verdict: identical"]))
        for model, name, dtype in (("model", "m64", "float64"), ("model", "m32", "float32"), ("blocks.gguf", "q64", "float64")):
            report.check(f"run {model} in {dtype}", ended(run_logits(work, model, name, dtype)))
        check_logits(report, work)
        check_limits(report, work)
        check_by_tensor(report, work)
        check_summary(report, work)
        check_near_misses(report, work)
        check_wide_scales(report, work)
        check_document(report, work)
    report.finish()


if __name__ == "__main__":
    main()
