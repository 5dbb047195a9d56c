#!/usr/bin/env python3
"""What lies beside a model: links that lead elsewhere, files that end too early, weights that are missing or no numbers."""

import json
import os
import pathlib
import shutil
import struct
import sys
import tempfile

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent))
from report import Report, ended, expect, pare
from wrong_use import ARCHITECTURE

SECRET = "nobody gives this away"
SHORT = pathlib.Path("/sys/kernel/mm/transparent_hugepage/enabled")  # says that it has a page of bytes, and has a line


def rewrite(work, model, *flags):
    shutil.rmtree(work / "out", ignore_errors=True)
    return pare("rewrite", model, "-o", "out", "--passes", "drop_key_bias", "--random", "1", *flags, cwd=work)


def check_links(report, work):
    (work / "secret.txt").write_text(SECRET)
    shutil.copytree(work / "model", work / "linked")
    (work / "linked" / "README.md").symlink_to("../secret.txt")
    (work / "linked" / "notes.txt").write_text("own")
    (work / "linked" / "same.txt").symlink_to("notes.txt")
    result = rewrite(work, "linked")
    report.check("a link out of the folder is named, and left", ended(result, 0, ["README.md -> ", "secret.txt", "--follow-links"]) or expect(
        sorted(path.name for path in (work / "out").glob("*.*")), ["certificate.json", "config.json", "model.safetensors", "notes.txt", "same.txt"]))
    report.check("one within it is followed", expect((work / "out" / "same.txt").read_text(), "own"))
    certificate = json.loads((work / "out" / "certificate.json").read_text())
    report.check("nothing of it is in the certificate", expect([certificate["links"], SECRET in json.dumps(certificate)], [{}, False]))
    result = rewrite(work, "linked", "--follow-links")
    report.check("asked to, it is copied and named", ended(result, 0, ["README.md", "secret.txt"]) or expect((work / "out" / "README.md").read_text(), SECRET))
    certificate = json.loads((work / "out" / "certificate.json").read_text())
    report.check("and in the certificate", expect(certificate["links"], {"README.md": str((work / "secret.txt").resolve())}))


def check_hub_cache(report, work):
    """models--ORG--NAME/snapshots/REVISION consists of links into blobs: those are the model's own."""
    blobs, snapshot = work / "models--a--b" / "blobs", work / "models--a--b" / "snapshots" / "c0ffee"
    blobs.mkdir(parents=True)
    snapshot.mkdir(parents=True)
    (work / "model" / "tokenizer_config.json").write_text("{}")
    for number, path in enumerate(sorted((work / "model").iterdir())):
        shutil.copy(path, blobs / f"{number:040x}")
        (snapshot / path.name).symlink_to(f"../../blobs/{number:040x}")
    (snapshot / "README.md").symlink_to("../../../secret.txt")
    result = rewrite(work, snapshot)
    report.check("a snapshot of the hub's cache", ended(result, 0, ["README.md -> "], without=["tokenizer_config.json"]) or expect(
        [(work / "out" / name).exists() for name in ("tokenizer_config.json", "README.md")], [True, False]))


def check_short_file(report, work):
    if not SHORT.exists() or SHORT.stat().st_size <= len(SHORT.read_bytes()):
        report.skip("a companion that ends early", f"{SHORT} is no such file here")
        return
    shutil.copytree(work / "model", work / "short")
    (work / "short" / "log.txt").symlink_to(SHORT)
    result = rewrite(work, "short", "--follow-links")
    report.check("a companion that ends early", ended(result, 1, ["log.txt", "ended after", "of its 4,096 bytes"]) or expect((work / "out").exists(), False))


def check_missing_weights(report, work):
    shutil.copytree(work / "model", work / "bare")
    (work / "bare" / "model.safetensors").unlink()
    (work / "bare" / "tok512.bin").write_bytes(b"a tokenizer")
    report.check("no weights beside a tokenizer", ended(pare("audit", "bare", cwd=work), 1, ["model.safetensors", "missing"], without=["tok512.bin"]))
    (work / "bare" / "pytorch_model.bin").write_bytes(b"pickled")
    report.check("weights of another format", ended(pare("audit", "bare", cwd=work), 1, ["pytorch_model.bin' is no file of torch.save"]))


def check_not_finite(report, work):
    """An audit reads few numbers: it says so, and with --conditions reads and judges them all."""
    shutil.copytree(work / "model", work / "nan")
    file = work / "nan" / "model.safetensors"
    data = bytearray(file.read_bytes())
    start = 8 + struct.unpack("<Q", data[:8])[0]
    begin = start + json.loads(data[8:start])["blocks.1.mlp.down.weight"]["data_offsets"][0]
    data[begin:begin + 4] = struct.pack("<f", float("nan"))
    file.write_bytes(data)
    result = pare("audit", "nan", "--json", cwd=work)
    found = json.loads(result.stdout)
    report.check("audit does not look at every number", ended(result) or ("" if found["tensors_read"] < found["tensors"] else "it says that it did"))
    report.check("and says so", ended(pare("audit", "nan", cwd=work), 0, ["read: the shapes of", "--conditions"]))
    report.check("--conditions refuses what is not finite", ended(pare("audit", "nan", "--conditions", cwd=work), 1, ["blocks.1.mlp.down.weight", "not finite"]))
    report.check("as rewrite does", ended(rewrite(work, "nan"), 1, ["blocks.1.mlp.down.weight", "not finite"]))
    result = pare("audit", "model", "--conditions", "--json", cwd=work)
    found = json.loads(result.stdout)
    report.check("--conditions reads them all", ended(result) or expect(found["tensors_read"], found["tensors"]))


def main():
    report = Report("companions")
    with tempfile.TemporaryDirectory() as folder:
        work = pathlib.Path(folder)
        architecture = json.loads(json.dumps(ARCHITECTURE))
        architecture["blocks"] = [{"repeat": 2, "attention": {"heads": 2, "head_width": 4, "bias": {"key": True}, "norm": {"kind": "rms"}},
                                   "mlp": {"width": 12, "activation": "gelu", "norm": {"kind": "rms"}}}]
        architecture["width"] = 8
        (work / "model.json").write_text(json.dumps(architecture))
        report.check("init", ended(pare("init", "model.json", "-o", "model", cwd=work)))
        check_links(report, work)
        check_hub_cache(report, work)
        check_short_file(report, work)
        check_missing_weights(report, work)
        check_not_finite(report, work)
    report.finish()


if __name__ == "__main__":
    main()
