"""Runs test scripts that need torch and transformers, which take longer to import than most of them take to run: imported
once here, and forked for each script. tools/test.py writes a line of JSON for each, `script` and `output`, and reads one
back, `status` and `seconds` of processor time."""

import atexit
import importlib
import json
import os
import runpy
import sys

MODULES = ["torch", "transformers", "transformers.modeling_utils", "transformers.models.auto.modeling_auto"]


def run(script, output):
    os.dup2(os.open(output, os.O_WRONLY), 1)
    os.dup2(1, 2)
    sys.argv, sys.path[0], status = [script], os.path.dirname(script), 1
    try:
        runpy.run_path(script, run_name="__main__")
        status = 0
    except SystemExit as end:
        status = end.code if isinstance(end.code, int) else 0 if end.code is None else 1
        if isinstance(end.code, str):
            print(end.code, file=sys.stderr)
    except BaseException:
        sys.excepthook(*sys.exc_info())
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)


def main():
    for module in MODULES:
        try:
            importlib.import_module(module)
        except ImportError:
            break  # each script says so
    else:
        sys.modules["torch"].set_num_threads(1)  # threads do not survive a fork
    for line in sys.stdin:
        child = os.fork()
        if child == 0:
            os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
            run(**json.loads(line))
        _, status, used = os.wait4(child, 0)  # what its own children took is in it
        print(json.dumps({"status": os.waitstatus_to_exitcode(status), "seconds": used.ru_utime + used.ru_stime}), flush=True)


if __name__ == "__main__":
    main()
