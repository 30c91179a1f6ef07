#!/usr/bin/env python3
"""A training that was stopped and went on from its checkpoint ends with the bits of one that ran through.

usage: resume_test.py PROGRAM REPORTS ARGUMENT...

Runs PROGRAM ARGUMENT... once as a whole, and again in pieces of REPORTS reports, and compares
checkpoints and learning curves byte by byte. A checkpoint of other settings must be refused, and left
as it is.
"""

import pathlib
import subprocess
import sys
import tempfile

SKIPPED = 77


def train(program, folder, *arguments):
    done = subprocess.run(
        [program, "--checkpoint", folder / "checkpoint", "--curve", folder / "curve.csv", *arguments],
        capture_output=True, text=True, check=False)
    if done.returncode == SKIPPED:
        print(done.stdout, end="")
        sys.exit(SKIPPED)
    return done


def trained(program, folder, *arguments):
    """The files of a training that must succeed."""
    done = train(program, folder, *arguments)
    if done.returncode != 0:
        sys.exit(f"{done.args} ended with {done.returncode}:\n{done.stdout}{done.stderr}")
    return [(folder / name).read_bytes() for name in ("checkpoint", "curve.csv")], done.stdout


def main():
    program, reports, *arguments = sys.argv[1:]
    with tempfile.TemporaryDirectory() as temporary:
        whole, parts = pathlib.Path(temporary, "whole"), pathlib.Path(temporary, "parts")
        whole.mkdir()
        parts.mkdir()
        expected, _ = trained(program, whole, *arguments)
        for piece in range(1, 100):
            # The number of threads changes in between: it changes no bit.
            second, said = trained(program, parts, *arguments, "--stop-after", reports,
                                   "--threads", str(1 + piece % 2))
            if "goes on from" not in said:
                break
        if piece < 2:
            sys.exit(f"it did not stop after {reports} reports:\n{said}")
        if second[0] != expected[0]:
            sys.exit("the checkpoints differ")
        rows = [[line for line in files[1].splitlines() if not line.startswith(b"#")]
                for files in (expected, second)]
        if rows[0] != rows[1]:
            sys.exit("the learning curves differ")
        other = train(program, parts, *arguments, "--seed", "99")
        if other.returncode != 1 or "seed = " not in other.stderr:
            sys.exit(f"another seed was not refused:\n{other.stdout}{other.stderr}")
        if (parts / "checkpoint").read_bytes() != second[0]:
            sys.exit("a refused checkpoint was changed")
    print(f"{len(rows[0]) - 1} reports in {piece} pieces, and the same bits at the end")


if __name__ == "__main__":
    main()
