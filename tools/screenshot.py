#!/usr/bin/env python3
"""The picture of a report in README: docs/images/report.png.

A small trained model is rewritten and verified, and the top of the page that `pare verify --report` writes is photographed
in headless Chromium. The model is any folder that pare can rewrite: tools/screenshot.py MODEL [IMAGE].
"""

import os
import pathlib
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT / "tests"), str(ROOT / "tests" / "report")]
from browser import Browser, find_chromium  # noqa: E402  (the folders above are not a package)
from report import PARE, SHARED  # noqa: E402

WIDTH, HEIGHT = 1210, 1280  # of the window: the verdicts and the first figures
SCALE = 0.8  # of the picture
MOST_BYTES = 150_000
TIME = "1767225600"  # of the page, so that the same model gives the same picture


def smaller(image):
    """Few colours are enough for a page: a palette halves the file, where Pillow is installed."""
    try:
        from PIL import Image
    except ImportError:
        return
    with Image.open(image) as picture:
        reduced = picture.convert("RGB").quantize(colors=256, dither=Image.Dither.NONE)
    reduced.save(image, optimize=True)


def main():
    model = pathlib.Path(sys.argv[1] if len(sys.argv) > 1 else SHARED / "models" / "stories260K").resolve()
    image = pathlib.Path(sys.argv[2] if len(sys.argv) > 2 else ROOT / "docs" / "images" / "report.png").resolve()
    program = find_chromium()
    if not program:
        sys.exit("screenshot: no Chromium on this machine; install it (apt-get install chromium) and run this again")
    if not model.is_dir():
        sys.exit(f"screenshot: '{model}' is no model folder; name one: tools/screenshot.py MODEL")
    with tempfile.TemporaryDirectory() as folder, Browser(program) as browser:
        work = pathlib.Path(folder)
        (work / "models").mkdir()
        # Reached by a name of its own: the picture shows the command, and not where this machine keeps its models.
        (work / "models" / model.name).symlink_to(model)
        before, after = f"models/{model.name}", "models/smaller"
        settings = {"cwd": work, "env": {**os.environ, "SOURCE_DATE_EPOCH": TIME}, "check": True, "stdout": subprocess.DEVNULL}
        subprocess.run([PARE, "rewrite", before, "-o", after, "--passes", "auto", "--quiet"], **settings)
        subprocess.run([PARE, "verify", before, after, "--report", "report.html"], **settings, stderr=subprocess.DEVNULL)
        page = browser.open(work / "report.html", width=WIDTH, height=HEIGHT, scale=SCALE)
        image.parent.mkdir(parents=True, exist_ok=True)
        page.screenshot(image)
        problems = page.problems()
        if problems:
            sys.exit("screenshot: the page complained: " + "; ".join(problems))
    smaller(image)
    size = image.stat().st_size
    if size > MOST_BYTES:
        sys.exit(f"screenshot: {image} has {size:,} bytes, more than {MOST_BYTES:,}: install Pillow, which makes it smaller")
    print(f"wrote {image}: {round(WIDTH * SCALE)} x {round(HEIGHT * SCALE)}, {size:,} bytes")


if __name__ == "__main__":
    main()
