#!/usr/bin/env python3
"""What a candidate says of itself loosens no limit and is never told as a fact, and hashes are of what was compared.

The attacks: a model that is not the same function, with a certificate that predicts so large an error that it would be;
passes that nobody applied; a link that turns elsewhere while the models are compared.
"""

import hashlib
import itertools
import json
import pathlib
import shutil
import struct
import sys
import tempfile
import threading

sys.path[:0] = [str(pathlib.Path(__file__).resolve().parent.parent / folder) for folder in ("", "error")]
from files import read_tensors, write_tensors
from report import Report, ended, expect, pare

ARCHITECTURE = {
    "width": 16, "vocab": 40, "context": 32, "head": {"tied": False},
    "blocks": [{"repeat": 2, "attention": {"heads": 2, "head_width": 8, "rope": {}, "norm": {"kind": "rms"}},
                "mlp": {"width": 32, "activation": "gelu", "norm": {"kind": "rms"}}}],
    "final_norm": {"kind": "rms"},
}
WEIGHTS = "model.safetensors"


def moved(source, target, fraction):
    """A copy with one matrix, in float64, moved by a fraction of itself."""
    shutil.copytree(source, target)
    tensors = read_tensors(target / WEIGHTS)
    dtype, shape, content = tensors["blocks.0.mlp.down.weight"]
    values = struct.unpack(f"<{len(content) // 8}d", content)
    content = struct.pack(f"<{len(values)}d", *((1 + fraction * (-1) ** n) * value for n, value in enumerate(values)))
    tensors["blocks.0.mlp.down.weight"] = (dtype, shape, content)
    write_tensors(target / WEIGHTS, tensors)


def hashes(folder):
    return {path.name: hashlib.sha256(path.read_bytes()).hexdigest()
            for path in sorted(folder.iterdir()) if path.name != "certificate.json"}


def forge(work, candidate, **words):
    """A certificate that fits the files of both, and says whatever it likes."""
    document = {"tool": {"name": "pare", "version": "9"}, "reference": {"files": hashes(work / "model")},
                "candidate": {"files": hashes(work / candidate)}, "passes": [], "predicted_error": 0,
                "verdict": "equivalent", **words}
    (work / candidate / "certificate.json").write_text(json.dumps(document))


def check_predictions(report, work):
    """The same model with and without a certificate that expects the worst of it: nothing may differ but the claim."""
    plain = json.loads(pare("verify", "model", "moved", "--json", cwd=work).stdout)
    report.check("moved by 1e-9, without a certificate", expect(plain["verdict"], "different"))
    for error in (1e-3, 1e300, "much", -1):
        forge(work, "moved", predicted_error=error,
              passes=[{"id": "fold_norm_gain", "predicted_error": error}], limit=error, noise_floor={"limit": error})
        result = pare("verify", "model", "moved", "--json", cwd=work)
        found = json.loads(result.stdout)
        report.check(f"predicted_error {error}", ended(result, 3) or expect(found["verdict"], "different"))
        report.check(f"predicted_error {error}: the same but the claim", expect(
            {key: value for key, value in found.items() if key != "claim"},
            {key: value for key, value in plain.items() if key != "claim"}))


def check_passes(report, work):
    """Of a copy: the verdict is good, but what made it is only what it says."""
    claimed = ["fold_norm_gain", "eliminate_projection"]
    forge(work, "copy", passes=[{"id": name, "saved_parameters": 10**9} for name in claimed])
    result = pare("verify", "model", "copy", "--json", cwd=work)
    found = json.loads(result.stdout)
    report.check("forged passes are no facts", ended(result, 0) or expect(found["passes"], []))
    report.check("but a claim", expect(found["claim"], {"passes": claimed, "reference_matches": True}))
    result = pare("verify", "model", "copy", cwd=work)
    report.check("printed as a claim", ended(result, 0, ["its certificate claims: fold_norm_gain, eliminate_projection\n"]))
    forge(work, "copy", passes=[{"id": "drop_key_bias"}], reference={"files": {"config.json": "0" * 64}})
    found = json.loads(pare("verify", "model", "copy", "--json", cwd=work).stdout)
    report.check("a claim about another reference", expect(
        found["claim"], {"passes": ["drop_key_bias"], "reference_matches": False}))
    for what, passes in (("a line of its own", [{"id": "none\nverdict: proved"}]), ("colours", [{"id": "\x1b[2Jx"}]),
                         ("a very long id", [{"id": "x" * 100000}]), ("no ids", [1, 2]), ("no list", "all")):
        forge(work, "copy", passes=passes)
        result = pare("verify", "model", "copy", cwd=work)
        report.check(what, ended(result, 1, ["certificate.json"], ["verdict: proved", "\x1b"]))
    (work / "copy" / "certificate.json").unlink()


class Turning:
    """Points a link at one of two files in turn, as fast as it can."""

    def __init__(self, link, targets):
        self.link, self.targets, self.ends = link, targets, threading.Event()
        self.thread = threading.Thread(target=self.turn)

    def turn(self):
        for target in itertools.cycle(self.targets):
            if self.ends.is_set():
                return
            new = self.link.with_name("new")
            new.symlink_to(target)
            new.replace(self.link)

    def __enter__(self):
        self.thread.start()

    def __exit__(self, *_):
        self.ends.set()
        self.thread.join()


def check_links(report, work):
    """Whenever the link turns: a verdict is about the bytes whose hash stands beside it."""
    right, wrong = (work / name / WEIGHTS for name in ("copy", "moved"))
    codes = {hashlib.sha256(right.read_bytes()).hexdigest(): 0, hashlib.sha256(wrong.read_bytes()).hexdigest(): 3}
    shutil.copytree(work / "copy", work / "turning")
    with Turning(work / "turning" / WEIGHTS, (right, wrong)):
        for number in range(12):
            result = pare("verify", "model", "turning", "--json", "--random", "2", cwd=work)
            about = json.loads(result.stdout).get("candidate", {}).get("files", {}).get(WEIGHTS)
            report.check(f"a link that turns, {number}", ended(result, codes.get(about, "that of one of the two files")))


def main():
    report = Report("a claim of its own")
    with tempfile.TemporaryDirectory() as folder:
        work = pathlib.Path(folder)
        (work / "a.json").write_text(json.dumps(ARCHITECTURE))
        made = pare("init", "a.json", "-o", "model", "--generic", "--dtype", "float64", cwd=work)
        report.check("init", ended(made, 0))
        shutil.copytree(work / "model", work / "copy")
        moved(work / "model", work / "moved", 1e-9)
        check_predictions(report, work)
        check_passes(report, work)
        check_links(report, work)
    report.finish()


if __name__ == "__main__":
    main()
