#!/usr/bin/env python3
"""Two models of 2 GB are verified in less than 1.5 GB. Needs 9 GB of disk in TMPDIR, and some minutes."""

import json
import os
import pathlib
import subprocess
import sys
import tempfile
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent))
from report import PARE, Report, pare

MOST = 1.5e9
DEEP = {"width": 1024, "vocab": 50257, "context": 1024, "embedding": {"position": "learned"}, "head": {"tied": True},
        "blocks": [{"repeat": 36, "attention": {"heads": 16, "head_width": 64, "norm": {"kind": "layer", "bias": True}},
                    "mlp": {"width": 4096, "activation": "gelu", "norm": {"kind": "layer", "bias": True}}}],
        "final_norm": {"kind": "layer", "bias": True}}
# Half of it is the token table, and there are two of them.
WIDE = {"width": 1024, "vocab": 128256, "context": 1024, "final_norm": {"kind": "rms"},
        "blocks": [{"repeat": 18, "attention": {"heads": 16, "kv_heads": 8, "head_width": 64, "rope": {},
                                                "norm": {"kind": "rms"}},
                    "mlp": {"width": 3584, "activation": "silu", "gated": True, "norm": {"kind": "rms"}}}]}


def verify(work, reference, candidate):
    """The certificate, the exit code, peak bytes and seconds."""
    started = time.monotonic()
    process = subprocess.Popen([str(PARE), "verify", reference, candidate, "--json", "--quiet"], cwd=work,
                               stdout=subprocess.PIPE)
    text = process.stdout.read()
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    return json.loads(text or "{}"), process.returncode, usage.ru_maxrss * 1024, time.monotonic() - started


def main():
    report = Report("verify_memory")
    for name, architecture in (("deep", DEEP), ("wide", WIDE)):
        with tempfile.TemporaryDirectory() as folder:
            work = pathlib.Path(folder)
            (work / "a.json").write_text(json.dumps(architecture))
            for out, seed in (("first", 1), ("again", 1), ("other", 2)):
                made = pare("init", "a.json", "-o", out, "--seed", seed, cwd=work)
                report.check(f"{name}: init {out}", made.stderr if made.returncode else "")
            for candidate, code in (("again", 0), ("other", 3)):
                certificate, found, peak, seconds = verify(work, "first", candidate)
                size = certificate.get("candidate", {}).get("bytes", 0)
                print(f"{name}, {candidate}: {size / 1e9:.2f} GB each, peak {peak / 1e9:.2f} GB, {seconds:.0f} s, "
                      f"verdict {certificate.get('verdict')}", flush=True)
                report.check(f"{name}: verdict on {candidate}", "" if found == code else f"exit code {found}, expected {code}")
                report.check(f"{name}: as large as it should be", "" if size > 1.9e9 else f"only {size} bytes")
                report.check(f"{name}: memory of {candidate}", "" if peak < MOST else f"{peak / 1e9:.2f} GB")
    report.finish()


if __name__ == "__main__":
    main()
