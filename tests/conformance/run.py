#!/usr/bin/env python3
"""pare against Hugging Face transformers, in float64: random small models of every family, and real ones.

    python tests/conformance/run.py [--pare build/pare] [--seed N] [--family NAME] [--count N]

A family is one file in families/ with `draw(rng, index)`, which gives a configuration, a model class and, where the
class takes any, its options; `index` counts the models, so that features that are listed and not drawn all get a turn.
`HEADS` lists its other classes: one more model is drawn for each.
"""

import argparse
import importlib
import os
import pathlib
import random
import re
import sys
import tempfile

HERE = pathlib.Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent)]
import report  # noqa: E402  (the folders above are not a package)


def parse():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--pare", type=pathlib.Path, default=report.PARE, help="the command to test")
    parser.add_argument("--seed", type=int, default=1, help="of every random choice")
    parser.add_argument("--family", help="only this one, and no real models")
    parser.add_argument("--count", type=int, default=2, help="models for each family")
    parser.add_argument("--any-version", action="store_true", help="with a transformers other than the pinned one")
    return parser.parse_args()


def main():
    options = parse()
    report.PARE = options.pare.resolve()
    result = report.Report("conformance")
    os.environ["HF_HUB_OFFLINE"] = "1"
    random_models, real_models, refusals, transformers = result.peers("random_models", "real_models", "refusals", "transformers")
    pinned = re.search(r"^transformers==(\S+)", (HERE / "requirements.txt").read_text(), re.M).group(1)
    if transformers.__version__ != pinned and not options.any_version:
        result.skip("all", f"transformers is {transformers.__version__}, pinned is {pinned} (see --any-version)")
        result.finish()
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    print(f"seed {options.seed}, transformers {transformers.__version__}", flush=True)
    names = sorted(path.stem for path in (HERE / "families").glob("*.py"))
    with tempfile.TemporaryDirectory() as folder:
        for name in [options.family] if options.family else names:
            family = importlib.import_module(f"families.{name}")
            for index, head in enumerate([None] * options.count + family.HEADS):
                # Each model has choices of its own, so that any of them can be repeated without the others.
                rng = random.Random(f"{options.seed}/{name}/{head.__name__ if head else index}")
                model = pathlib.Path(folder, f"{name}-{index}")
                random_models.check(result, f"{name} {index}", family, rng, index, model, head)
        if not options.family:
            refusals.check(result, pathlib.Path(folder))
            real_models.check(result, pathlib.Path(folder))
    result.finish()


if __name__ == "__main__":
    main()
