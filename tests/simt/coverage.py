#!/usr/bin/env python3
"""Which lines of the kernels no test has executed.

usage: coverage.py BUILD_FOLDER [--write FILE]

Reads what the simt tests of a build with PACKRNN_COVERAGE left behind (gcov), joins the counts of
all instances of a template, and prints a table of the files in kernels/cuda. The exit status is 1
if a line was never executed that EXCEPTIONS does not explain, or if an exception explains nothing.
"""
import argparse
import collections
import json
import pathlib
import subprocess
import sys

# (file, a piece of the line's text): why no test on the simt device can execute it.
EXCEPTIONS = {}


def counts_of(build):
    """file name -> line number -> executions, for sources in kernels/cuda."""
    notes = sorted(build.glob("tests/simt/CMakeFiles/packrnn_simt.dir/**/*.gcda"))
    if not notes:
        sys.exit(f"no coverage data under {build}: configure with PACKRNN_COVERAGE and run the simt tests")
    counts = collections.defaultdict(lambda: collections.defaultdict(int))
    for note in notes:
        out = subprocess.run(["gcov", "--json-format", "--stdout", str(note)], check=True,
                             capture_output=True, cwd=note.parent).stdout
        for document in out.decode().splitlines():
            for entry in json.loads(document)["files"]:
                path = pathlib.Path(entry["file"])
                if path.suffix in (".cu", ".cuh") and path.parent.name == "cuda":
                    for line in entry["lines"]:
                        counts[path.name][line["line_number"]] += line["count"]
    return counts


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("build", type=pathlib.Path)
    parser.add_argument("--write", type=pathlib.Path, help="also write the table as Markdown")
    arguments = parser.parse_args()
    folder = pathlib.Path(__file__).resolve().parents[2] / "kernels" / "cuda"

    rows, missed, used = [], [], set()
    for name, lines in sorted(counts_of(arguments.build.resolve()).items()):
        text = (folder / name).read_text().splitlines()
        explained = 0
        for number in sorted(n for n, count in lines.items() if count == 0):
            line = text[number - 1].strip()
            reason = next((k for k in EXCEPTIONS if k[0] == name and k[1] in line), None)
            if reason:
                used.add(reason)
                explained += 1
            else:
                missed.append(f"{name}:{number}: {line}")
        executed = sum(count > 0 for count in lines.values())
        rows.append((name, len(lines), executed, explained))

    table = ["| file | lines of code | executed | explained below |", "|---|--:|--:|--:|"]
    table += [f"| {n} | {a} | {e} | {x} |" for n, a, e, x in rows]
    totals = [sum(r[i] for r in rows) for i in (1, 2, 3)]
    table.append(f"| all | {totals[0]} | {totals[1]} | {totals[2]} |")
    print("\n".join(table))
    if arguments.write:
        notes = [f"- `{f}`, `{t}`: {why}" for (f, t), why in EXCEPTIONS.items()]
        arguments.write.write_text("# Kernel lines executed by the simt tests\n\n"
                                   "Written by `tests/simt/coverage.py`; a line counts as executed if any instance\n"
                                   "of its template was.\n\n" + "\n".join(table + [""] + notes) + "\n")
    for line in missed:
        print("never executed:", line)
    for stale in sorted(set(EXCEPTIONS) - used):
        print("exception without a line:", *stale)
    sys.exit(1 if missed or set(EXCEPTIONS) - used else 0)


if __name__ == "__main__":
    main()
