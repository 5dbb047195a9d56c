#!/usr/bin/env python3
"""Runs the verifier's campaign (tests/attacks/campaign_test.cpp) in several processes and adds up what they counted."""

import argparse
import collections
import os
import re
import subprocess
import sys

LINE = re.compile(r"^(right|sabotaged) in (\w+):(.*)(?:accepted ones )?at most (\S+) of what is allowed$")


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("program")
    parser.add_argument("--draws", type=int, default=20000)
    parser.add_argument("--jobs", type=int, default=os.cpu_count())
    parser.add_argument("--first", type=int, default=0)
    options = parser.parse_args()
    each = -(-options.draws // options.jobs)
    started = []
    for job in range(options.jobs):  # seeds far apart: a draw that rewrite refuses is passed over
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "PARE_DRAWS": str(each),
                       "PARE_FIRST_SEED": str(options.first + job * 10_000_000)}
        started.append(subprocess.Popen([options.program, "-tc=campaign*"], env=environment, stdout=subprocess.PIPE,
                                        text=True))
    counts, worst, failed = collections.defaultdict(collections.Counter), collections.defaultdict(float), 0
    for process in started:
        for line in process.communicate()[0].splitlines():
            found = LINE.match(line)
            if not found:
                if line.startswith("seed "):
                    print(line)
                continue
            kind = found.group(1), found.group(2)
            for number, verdict in re.findall(r"(\d+) ([A-Za-z_ ]+),", found.group(3)):
                counts[kind][verdict] += int(number)
            worst[kind] = max(worst[kind], float(found.group(4)))
        failed += process.returncode != 0
    for kind in sorted(counts):
        found = ", ".join(f"{number:,} {verdict}" for verdict, number in sorted(counts[kind].items()))
        print(f"{kind[0]:9} {kind[1]:8} {found}; accepted ones at most {worst[kind]:.2g} of what is allowed")
    print(f"campaign: {each * options.jobs:,} of each, {failed} of {options.jobs} processes failed")
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
