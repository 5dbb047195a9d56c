"""What the attacks share: `verify` is asked of two folders, and must not call the same what is not, nor the reverse.

Every case proves its own claim first, by NumPy or transformers in float64 on inputs where it shows: an attack moves some
output by far more than any limit, a control by nothing but rounding.
"""

import importlib.util
import json
import os
import pathlib
import shutil
import sys
import tempfile

os.environ["HF_HUB_OFFLINE"] = "1"

HERE = pathlib.Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent), str(HERE.parent / "conformance")]
from report import Report, pare  # noqa: E402  (the folders above are not a package)

MISSING = [name for name in ("numpy", "safetensors", "torch", "transformers") if importlib.util.find_spec(name) is None]
if MISSING:
    print(f"skipped {pathlib.Path(sys.argv[0]).stem}: everything: no {', '.join(MISSING)}: make test fetches what it needs")
    print("0 passed, 0 failed, 1 skipped")
    sys.exit(0)

SAME = ("identical", "proved", "equivalent")
NARROW = (*SAME, "within_noise")
FAR, NEAR = 1e-3, 1e-10


def said(result):
    """The verdict, or the reason why there is none, or the end of what was printed."""
    try:
        document = json.loads(result.stdout)
        return document["verdict"] if "verdict" in document else document["error"]["message"]
    except (ValueError, KeyError):
        return (result.stderr or result.stdout).strip()[-300:]


class Attacks(Report):
    def __init__(self, name, work):
        super().__init__(name)
        self.work = work

    def verify(self, reference, candidate, flags=()):
        return pare("verify", reference, candidate, "--json", "--quiet", *flags, cwd=self.work)

    def attack(self, case, reference, candidate, far, flags=(), reasons=(), strict=False, least=FAR):
        """Another function by `far` must be `different`, or refused with one of the reasons; `strict`: also with --strict."""
        if not far > least:
            self.check(case, f"this attack is none: the outputs are only {far:.1e} apart")
            return
        for more in ([], ["--strict"]) if strict else ([],):
            result = self.verify(reference, candidate, [*flags, *more])
            different = result.returncode == 3 and said(result) == "different"
            refused = result.returncode in (1, 2) and any(reason in result.stdout for reason in reasons)
            self.check(" ".join([case, *more]), "" if different or refused else
                       f"{far:.1e} apart, but exit code {result.returncode}: {said(result)}")

    def control(self, case, reference, candidate, far=0.0, flags=(), verdicts=SAME, most=NEAR):
        """What is the same function must be called so."""
        if not far < most:
            self.check(case, f"this control is none: the outputs are {far:.1e} apart")
            return
        result = self.verify(reference, candidate, flags)
        same = result.returncode == 0 and said(result) in verdicts
        self.check(case, "" if same else f"the same function, but exit code {result.returncode}: {said(result)}")

    def save(self, name, model):
        model.save(self.work / name)
        return name

    def copy(self, folder, name):
        shutil.copytree(self.work / folder, self.work / name)
        return name

    def reconfigured(self, folder, name, **keys):
        """A copy of a Hugging Face folder whose config.json says something else."""
        self.copy(folder, name)
        path = self.work / name / "config.json"
        path.write_text(json.dumps(json.loads(path.read_text()) | keys))
        return name


def run(name, *parts):
    """Every part in a folder of its own, which goes when it ends."""
    with tempfile.TemporaryDirectory() as folder:
        report = Attacks(name, pathlib.Path(folder))
        for part in parts:
            report.work = pathlib.Path(folder, part.__name__)
            report.work.mkdir()
            part(report)
    report.finish()
