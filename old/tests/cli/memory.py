#!/usr/bin/env python3
"""What a run holds: the weights once, one more copy of the largest tensor, and what a tiny model needs as well."""

import json
import os
import pathlib
import platform
import subprocess
import sys
import tempfile

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent))
from report import PARE, Report, pare

WIDTH, VOCAB, LAYERS = 1024, 4096, 13
# libtorch brings an allocator of its own (mimalloc) on aarch64, which rounds blocks up by as much as an eighth: there 654
# MB of tensors made by PyTorch hold 735.
ROUNDED_UP = 1.125 if platform.machine() == "aarch64" else 1
MARGIN = 10e6  # intermediates of a few tokens, the pages of kernels that only larger products need


def architecture(width, vocab, layers):
    return {"width": width, "vocab": vocab, "context": 16, "head": {"tied": True},
            "blocks": [{"repeat": layers, "attention": {"heads": 4, "head_width": width // 4},
                        "mlp": {"width": 4 * width, "activation": "gelu"}}]}


def peak(work, model):
    """Bytes that `pare run` in bfloat16 held at most, and its exit code."""
    command = [str(PARE), "run", model, "-o", f"{model}.out", "--tokens", "ids.json", "--dtype", "bfloat16"]
    process = subprocess.Popen(command, cwd=work, stdout=subprocess.DEVNULL)
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    return usage.ru_maxrss * 1024, process.returncode


def main():
    report = Report("memory")
    if "asan" in str(PARE):
        report.skip("memory of a run", "the sanitizer keeps what is freed")
        report.finish()
    with tempfile.TemporaryDirectory() as folder:
        work = pathlib.Path(folder)
        (work / "ids.json").write_text("[[1, 2, 3, 4]]")
        for name, size in (("tiny", (16, 32, 1)), ("large", (WIDTH, VOCAB, LAYERS))):
            (work / f"{name}.json").write_text(json.dumps(architecture(*size)))
            made = pare("init", f"{name}.json", "-o", name, "--dtype", "bfloat16", cwd=work)
            report.check(f"init {name}", made.stderr if made.returncode else "")
        base, code = peak(work, "tiny")
        report.check("run tiny", f"exit code {code}" if code else "")
        held, code = peak(work, "large")
        report.check("run large", f"exit code {code}" if code else "")
        weights = (work / "large" / "model.safetensors").stat().st_size
        largest = 2 * 4 * WIDTH * WIDTH
        most = ROUNDED_UP * (weights + largest) + base + MARGIN
        report.check("a run holds the weights and one tensor more", "" if held <= most else
                     f"held {held / 1e6:.0f} MB, expected at most {most / 1e6:.0f}: weights {weights / 1e6:.0f}, "
                     f"largest tensor {largest / 1e6:.0f}, a tiny model {base / 1e6:.0f}, margin {MARGIN / 1e6:.0f}")
        print(f"weights {weights / 1e6:.0f} MB, held {(held - base) / 1e6:.0f} MB more than a tiny model")
    report.finish()


if __name__ == "__main__":
    main()
