#!/usr/bin/env python3
"""How many instructions two small calls take (counted.cpp), against what is on record.

usage: instructions.py PROGRAM COMPILER [--update]

Counts do not depend on how busy a machine is. They do on the compiler and on the instruction set, which is
what valgrind offers (no AVX-512): counts.json has one record for each pair that was counted, and for others
this is skipped (status 77), as it is without valgrind. More than 2 % above the record is a failure; where the
change is meant, or for another compiler, --update records what is counted now.
"""

import json
import pathlib
import re
import shutil
import subprocess
import sys

ALLOWED = 1.02
RECORD = pathlib.Path(__file__).with_name("counts.json")
CASES = ("ragged", "stream")


def skip(why):
    print(f"skipped: {why}")
    sys.exit(77)


def count(program, case):
    """The instruction set that was used, and the instructions."""
    run = subprocess.run(
        ["valgrind", "--tool=callgrind", "--callgrind-out-file=/dev/null", f"--toggle-collect=counted_{case}",
         program, case],
        capture_output=True, text=True, check=False, timeout=120)
    found = re.search(r"Collected : (\d+)", run.stderr)
    if run.returncode != 0 or not found or int(found.group(1)) == 0:
        sys.exit(f"{case}: valgrind ended with {run.returncode}\n{run.stderr}")
    return run.stdout.split()[0], int(found.group(1))


def main():
    if len(sys.argv) not in (3, 4) or sys.argv[1] in ("-h", "--help"):
        sys.exit(__doc__)
    program, compiler = sys.argv[1:3]
    if not shutil.which("valgrind"):
        skip("there is no valgrind")
    counts = {case: count(program, case) for case in CASES}
    key = f"{compiler}, {counts[CASES[0]][0]}"
    now = {case: instructions for case, (_, instructions) in counts.items()}
    record = json.loads(RECORD.read_text(encoding="utf-8")) if RECORD.exists() else {}
    if sys.argv[3:] == ["--update"]:
        record[key] = now
        RECORD.write_text(json.dumps(record, indent=2, sort_keys=True) + "\n", encoding="utf-8")
    if key not in record:
        skip(f"nothing is on record for {key}; counted now: {now}")
    failed = False
    for case in CASES:
        ratio = now[case] / record[key][case]
        print(f"{key}: {case}: {now[case]} instructions, on record {record[key][case]} ({100 * (ratio - 1):+.1f} %)")
        failed = failed or ratio > ALLOWED
    if failed:
        sys.exit(f"more than {100 * (ALLOWED - 1):.0f} % above the record")


if __name__ == "__main__":
    main()
