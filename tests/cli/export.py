#!/usr/bin/env python3
"""`pare export`, for transformers: which family, what goes along, what is refused, what may be replaced. What other programs compute
with the results is in tests/conformance/export_*.py."""

import hashlib
import json
import pathlib
import struct
import sys
import tempfile

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent))
sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "error"))
from files import read_tensors, write_tensors
from report import CERTIFICATE, Report, ended, expect, interrupted_at, pare

NORM = {"kind": "layer", "bias": True}
BIASES = {"query": True, "key": True, "value": True, "output": True}
STOCK = {  # as GPT-2 has it
    "width": 16, "vocab": 32, "context": 24, "embedding": {"position": "learned"},
    "blocks": [{"repeat": 2, "attention": {"heads": 2, "head_width": 8, "norm": NORM, "bias": BIASES},
                "mlp": {"width": 24, "activation": "gelu_tanh", "norm": NORM, "bias": {"up": True, "down": True}}}],
    "final_norm": NORM, "head": {"tied": True},
}
ODD = STOCK | {"final_norm": None}  # which no family has
RUNNING = "modeling_pare.py"


def config_of(folder):
    return json.loads((folder / "config.json").read_text())


def check_stock(report, work):
    result = pare("export", "stock", "-o", "as-gpt2", "--to", "hf", "--json", cwd=work)
    report.check("a model that GPT-2 can say", ended(result))
    certificate = json.loads(result.stdout)
    report.check("--json is the certificate", expect(json.loads((work / "as-gpt2" / "certificate.json").read_text()), certificate))
    report.check("its keys", expect(list(certificate), [*CERTIFICATE[:-1], "export", CERTIFICATE[-1]]))
    report.check("its verdict", expect([certificate["verdict"], certificate["export"]["format"]], ["identical", "hf"]))
    hashes = {name: hashlib.sha256((work / "as-gpt2" / name).read_bytes()).hexdigest() for name in ("config.json", "model.safetensors")}
    report.check("hashes as hashlib's", expect(certificate["candidate"]["files"], hashes))
    config = config_of(work / "as-gpt2")
    report.check("it is a GPT-2", expect([config["model_type"], config["architectures"], (work / "as-gpt2" / RUNNING).exists()],
                                         ["gpt2", ["GPT2LMHeadModel"], False]))
    report.check("verify", ended(pare("verify", "stock", "as-gpt2", cwd=work), 0, ["verdict: identical"]))
    report.check("and back", ended(pare("export", "as-gpt2", "-o", "native", "--to", "hf", "--family", "pare", cwd=work), 0, ["identical"]))
    report.check("the same tensors", expect(read_tensors(work / "native" / "model.safetensors"), read_tensors(work / "stock" / "model.safetensors")))
    for dtype, verdict in ("bfloat16", "proved"), ("float64", "identical"):
        result = pare("export", "stock", "-o", dtype, "--to", "hf", "--dtype", dtype, cwd=work)
        report.check(f"in {dtype}", ended(result, 0, [f": {verdict}"]))
        [stored] = {tensor[0] for tensor in read_tensors(work / dtype / "model.safetensors").values()}
        report.check(f"all of it in {dtype}", expect(stored, {"bfloat16": "BF16", "float64": "F64"}[dtype]))


def check_own_code(report, work):
    result = pare("export", "odd", "-o", "own", "--to", "hf", cwd=work)
    report.check("a model that no family can say", ended(result, 0, ["trust_remote_code", RUNNING, "identical"]))
    config = config_of(work / "own")
    report.check("what transformers looks for", expect(
        [config["architectures"], config["auto_map"]],
        [["PareForCausalLM"], {"AutoConfig": "modeling_pare.PareConfig", "AutoModel": "modeling_pare.PareModel",
                               "AutoModelForCausalLM": "modeling_pare.PareForCausalLM"}]))
    code = work / "own" / RUNNING
    compile(code.read_text(), str(code), "exec")
    report.check("verify", ended(pare("verify", "odd", "own", cwd=work), 0, ["verdict: identical"], ["modeling_pare"]))
    certificate = json.loads((work / "own" / "certificate.json").read_text())
    report.check("the code is in the certificate", expect(certificate["companions"], {RUNNING: hashlib.sha256(code.read_bytes()).hexdigest()}))

    text = code.read_text()
    code.write_text(text + "# changed\n")
    report.check("other code is named", ended(pare("verify", "odd", "own", cwd=work), 0, ["is not the file that this version of pare writes", "no verdict covers"]))
    code.unlink()
    report.check("and that it is missing", ended(pare("run", "own", "--tokens", "ids.json", "-o", "answers", cwd=work), 0, [RUNNING, "is missing"]))
    code.write_text(text)
    elsewhere = config | {"auto_map": {"AutoModelForCausalLM": "somebody/model--modeling_pare.PareForCausalLM"}}
    (work / "elsewhere").mkdir()
    (work / "elsewhere" / "config.json").write_text(json.dumps(elsewhere))
    (work / "elsewhere" / "model.safetensors").write_bytes((work / "own" / "model.safetensors").read_bytes())
    report.check("code from elsewhere", ended(pare("audit", "elsewhere", cwd=work), 1, ["auto_map.AutoModelForCausalLM", "code of one's own"]))

    report.check("rewritten", ended(pare("rewrite", "own", "-o", "smaller", "--passes", "drop_key_bias", cwd=work)))
    report.check("it still runs there", expect([config_of(work / "smaller")["auto_map"], (work / "smaller" / RUNNING).read_text() == text],
                                               [config["auto_map"], True]))
    report.check("exported again as a stock model, it has no code", ended(pare("export", "native", "-o", "stock-again", "--to", "hf", cwd=work)))
    report.check("no code", expect((work / "stock-again" / RUNNING).exists(), False))


def check_refusals(report, work):
    result = pare("export", "odd", "-o", "new", "--to", "hf", "--family", "gpt2", cwd=work)
    report.check("a family that cannot say it", ended(result, 2, ["final_norm is null", "gpt2"]))
    report.check("nothing is left", expect([path.name for path in work.iterdir() if "new" in path.name], []))
    for place in "odd", "odd/inside":
        report.check(f"over its source, {place}", ended(pare("export", "odd", "-o", place, "--to", "hf", cwd=work), 1, [place.split("/")[0]]))
    report.check("what is there stays", ended(pare("export", "odd", "-o", "own", "--to", "hf", cwd=work), 1, ["exists", "--force"]))
    report.check("--force", ended(pare("export", "odd", "-o", "own", "--to", "hf", "--force", cwd=work), 0, ["identical"]))
    (work / "own" / "thesis.txt").write_text("mine")
    report.check("somebody's file stays", ended(pare("export", "odd", "-o", "own", "--to", "hf", "--force", cwd=work), 1, ["thesis.txt"]))
    report.check("it is there", expect((work / "own" / "thesis.txt").read_text(), "mine"))


def check_companions(report, work):
    (work / "odd" / "tokenizer.json").write_text("{}")
    (work / "odd" / "other.bin").write_text("weights")
    result = pare("export", "odd", "-o", "with", "--to", "hf", cwd=work)
    report.check("what goes along", ended(result, 0, ["other.bin was not copied"]))
    report.check("it is there", expect(sorted(path.name for path in (work / "with").iterdir()),
                                       ["certificate.json", "config.json", "model.safetensors", RUNNING, "tokenizer.json"]))
    (work / "odd" / "tokenizer.json").unlink()
    (work / "odd" / "other.bin").unlink()
    tensors = read_tensors(work / "as-gpt2" / "model.safetensors")
    tensors["transformer.h.0.attn.masked_bias"] = ("F32", [], struct.pack("<f", -1e4))
    tensors["value_head.weight"] = ("F32", [1, 16], bytes(64))
    (work / "more").mkdir()
    (work / "more" / "config.json").write_bytes((work / "as-gpt2" / "config.json").read_bytes())
    write_tensors(work / "more" / "model.safetensors", tensors)
    result = pare("export", "more", "-o", "less", "--to", "hf", "--family", "pare", cwd=work)
    if result.returncode == 0:
        report.check("a tensor that is not written is named", ended(result, 0, ["not written", "masked_bias"]))


def check_interrupted(report, work):
    shown, code, _ = interrupted_at("verifying", "export", "odd", "-o", "stopped", "--to", "hf", "--random", "20000", cwd=work)
    report.check("Ctrl-C", expect(code, 130))
    report.check("leaves nothing", expect([path.name for path in work.iterdir() if "stopped" in path.name], []))


def main():
    report = Report("export")
    with tempfile.TemporaryDirectory() as folder:
        work = pathlib.Path(folder)
        (work / "ids.json").write_text("[[1, 2, 3]]")
        for name, architecture in ("stock", STOCK), ("odd", ODD):
            (work / f"{name}.json").write_text(json.dumps(architecture))
            report.check(f"init {name}", ended(pare("init", f"{name}.json", "-o", name, cwd=work)))
        check_stock(report, work)
        check_own_code(report, work)
        check_refusals(report, work)
        check_companions(report, work)
        check_interrupted(report, work)
    report.finish()


if __name__ == "__main__":
    main()
