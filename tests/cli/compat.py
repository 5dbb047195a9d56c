#!/usr/bin/env python3
"""`pare rewrite --form compat` says what its file is: of the same size, with parameters that do nothing now."""

import json
import pathlib
import struct
import sys
import tempfile

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent))
sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "error"))
from files import read_tensors, write_tensors
from report import Report, ended, expect, pare

WIDTH, LAYERS = 16, 3
BIAS = {"query": True, "key": True, "value": True, "output": True}
NORM = {"kind": "layer", "bias": True}


def architecture(norm=None, skip=True):
    return {
        "width": WIDTH, "vocab": 40, "context": 12, "embedding": {"position": "learned"}, "head": {"tied": True}, "final_norm": norm,
        "blocks": [{"repeat": LAYERS, "attention": {"heads": 2, "head_width": 8, "bias": BIAS, "norm": norm},
                    "mlp": {"width": 24, "activation": "gelu", "bias": {"up": True, "down": True}, "norm": norm, "skip": skip}}]}


MODELS = {
    "normed": (architecture(NORM), "float32"),
    "plain": (architecture(skip=False), "float64"),
    "residual": (architecture(), "float64"),
}
NEUTRAL = {"fold_norm_gain": LAYERS * 4 * WIDTH, "drop_key_bias": LAYERS * WIDTH, "fold_value_bias": LAYERS * WIDTH,
           "shrink_head_pairs": LAYERS * 2 * 2 * 8 * 8}
PIVOTS = LAYERS * 2 * WIDTH  # which inputs an identity block has: no parameters, but stored


def rewrite(work, model, out, passes, *flags, form="compat"):
    return pare("rewrite", model, "-o", out, "--passes", passes, "--form", form, *flags, cwd=work)


def size(work, model):
    return (work / model / "model.safetensors").stat().st_size


def counts(result):
    """What each pass of a certificate claims: saved parameters, saved bytes, neutral parameters."""
    return {step["id"]: (step["saved_parameters"], step["saved_bytes"], step["neutral_parameters"]) for step in json.loads(result.stdout)["passes"]}


def check_claims(report, work):
    result = rewrite(work, "normed", "compat", "auto", "--json")
    report.check("compat", ended(result))
    report.check("nothing is saved, and what became neutral is counted", expect(
        counts(result), {name: (0, 0, neutral) for name, neutral in NEUTRAL.items()}))
    certificate = json.loads(result.stdout)
    total = sum(NEUTRAL.values())
    form = certificate["form"]
    report.check("form", expect([form["name"], form["neutral_parameters"]], ["compat", total]))
    report.check("form says what it is for", "" if "stock engines" in form["note"] and "strict is smaller" in form["note"] else form["note"])
    idle = rewrite(work, "normed", "idle", "gauge_heads", "--json")
    report.check("strict is no smaller where nothing is saved", ended(idle) or (
        "" if "stock engines" in (note := json.loads(idle.stdout)["form"]["note"]) and "smaller" not in note else note))
    report.check("the size is what is said", expect(size(work, "compat"), size(work, "normed")))
    sides = [[certificate[side][key] for key in ("parameters", "bytes")] for side in ("reference", "candidate")]
    report.check("both sides of the certificate too", expect(sides[0], sides[1]))
    parameters = f"{sides[0][0]:,}"
    result = rewrite(work, "normed", "text", "auto", "--no-verify")
    report.check("in words", ended(result, 0, [f"{parameters} -> {parameters} parameters (as before), compat", "made neutral",
                                               f"{total:,} of them are now ones, zeros or identities", "stock engines"]))
    report.check("and claims nothing else", expect("parameters less" in result.stdout or "-0." in result.stdout, False))

    result = rewrite(work, "normed", "strict", "auto", "--json", form="strict")
    report.check("strict saves them", ended(result) or expect(counts(result), {
        name: (neutral, 4 * (neutral - (PIVOTS if name == "shrink_head_pairs" else 0)), 0) for name, neutral in NEUTRAL.items()}))
    report.check("strict, form", expect([json.loads(result.stdout)["form"][key] for key in ("name", "neutral_parameters")], ["strict", 0]))
    saved = sum(map(len, (t[2] for t in read_tensors(work / "normed" / "model.safetensors").values()))) - sum(
        map(len, (t[2] for t in read_tensors(work / "strict" / "model.safetensors").values())))
    report.check("and its file is smaller by that", expect(saved, sum(saved for _, saved, _ in counts(result).values())))
    report.check("audit says of which form its bytes are", ended(pare("audit", "normed", cwd=work), 0, ["those of the strict form"]))


def check_again(report, work):
    for passes in ("auto", "drop_key_bias", "fold_norm_gain,fold_value_bias"):
        result = rewrite(work, "compat", "again", passes)
        report.check(f"compat of compat, {passes}", ended(result, 2, ["--form compat", "so already", "--form strict"]))
    report.check("nothing is written", expect((work / "again").exists(), False))
    result = rewrite(work, "compat", "smaller", "auto", "--json", form="strict")
    report.check("strict of compat is smaller", ended(result) or expect(
        {name: saved for name, (saved, _, _) in counts(result).items()}, NEUTRAL))
    result = rewrite(work, "normed", "partly", "drop_key_bias", "--no-verify")
    result = rewrite(work, "partly", "rest", "auto", "--json", "--no-verify")
    report.check("only what was not so before counts", ended(result) or expect(
        {name: neutral for name, (_, _, neutral) in counts(result).items()}, NEUTRAL | {"drop_key_bias": 0}))
    # One element that is not zero is enough.
    path = work / "partly" / "model.safetensors"
    tensors = read_tensors(path)
    dtype, shape, data = tensors["blocks.2.attention.key.bias"]
    tensors["blocks.2.attention.key.bias"] = (dtype, shape, data[:-4] + struct.pack("<f", 1e-30))
    write_tensors(path, tensors)
    (work / "partly" / "certificate.json").unlink()
    result = rewrite(work, "partly", "one", "drop_key_bias", "--json", "--no-verify")
    report.check("a bias that is nearly zero", ended(result) or expect(counts(result), {"drop_key_bias": (0, 0, WIDTH)}))

    result = rewrite(work, "plain", "identity", "eliminate_projection{target=q}", "--json")
    report.check("identities", ended(result) or expect(counts(result), {"eliminate_projection": (0, 0, LAYERS * WIDTH * WIDTH)}))
    result = rewrite(work, "identity", "again", "eliminate_projection{target=q}")
    report.check("identities again", ended(result, 2, ["so already"]))
    result = rewrite(work, "identity", "again", "eliminate_projection{target=q}", form="strict")
    report.check("without them", ended(result, 0, [f"{LAYERS * WIDTH * WIDTH:,}"]))


def check_hidden_states(report, work):
    """Engines also take a model without its head: where its hidden states are others, that is said, and only there."""
    (work / "ids.json").write_text(json.dumps([[3, 1, 4, 1, 5, 9]]))
    for tied in (True, False):
        name = "tied" if tied else "untied"
        (work / f"{name}.json").write_text(json.dumps(architecture({"kind": "rms"}) | {"head": {"tied": tied}}))
        pare("init", f"{name}.json", "-o", name, "--generic", cwd=work)
        result = rewrite(work, name, f"{name}-compat", "auto")
        report.check(f"{name}", ended(result, 0, ["proved"]))
        last = []
        for model in (name, f"{name}-compat"):
            pare("run", model, "-o", f"{model}.safetensors", "--tokens", "ids.json", "--taps", "final", cwd=work)
            data = {key: tensor for key, tensor in read_tensors(work / f"{model}.safetensors").items() if "final" in key}
            last.append([x for _, _, data in data.values() for x in struct.unpack(f"<{len(data) // 8}d", data)])
        apart = max(abs(a - b) for a, b in zip(*last)) if last[0] and len(last[0]) == len(last[1]) else None
        report.check(f"{name}: hidden states", "" if apart is not None and (apart > 1e-2) != tied else f"apart by {apart}")
        report.check(f"{name}: a warning", expect("last hidden states are not kept" in result.stderr, not tied))


def check_growth(report, work):
    """What strict makes up for by what it drops, compat has to store as well."""
    result = rewrite(work, "residual", "grown", "drop_key_bias,eliminate_projection")
    report.check("compat would be larger", ended(result, 2, ["--allow-growth", "640 parameters more"]))
    result = rewrite(work, "residual", "grown", "drop_key_bias,eliminate_projection", "--allow-growth", "--json")
    report.check("and is, if asked for", ended(result))
    larger = size(work, "grown") - size(work, "residual")
    report.check("by that much", "" if 640 * 8 <= larger < 640 * 8 + 200 else f"{larger} bytes")
    report.check("as the certificate says", expect(sum(saved for saved, _, _ in counts(result).values()), -640))


def main():
    report = Report("compat")
    with tempfile.TemporaryDirectory() as folder:
        work = pathlib.Path(folder)
        for name, (model, dtype) in MODELS.items():
            (work / f"{name}.json").write_text(json.dumps(model))
            report.check(f"init {name}", ended(pare("init", f"{name}.json", "-o", name, "--generic", "--seed", "1", "--dtype", dtype, cwd=work)))
        check_claims(report, work)
        check_again(report, work)
        check_hidden_states(report, work)
        check_growth(report, work)
    report.finish()


if __name__ == "__main__":
    main()
