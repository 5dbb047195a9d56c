#!/usr/bin/env python3
"""Every command that README and docs show prints what they say: tools/docs.py, which `make docs-update` runs to write it."""

import os
import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent))
from report import PARE, ROOT

os.execv(sys.executable, [sys.executable, str(ROOT / "tools" / "docs.py"), str(PARE)])
