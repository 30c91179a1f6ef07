#!/usr/bin/env python3
"""Which lines and which kernels of kernels/cuda no test has executed.

usage: coverage.py BUILD_FOLDER [--write FILE]

Reads what the simt tests of a build with PACKRNN_COVERAGE left behind (gcov). A line counts as
executed if it was in any instance of its template; of a kernel, every instance has to be. Prints
both tables. The exit status is 1 if something was never executed that EXCEPTIONS does not explain,
or if an exception explains nothing.
"""
import argparse
import collections
import json
import pathlib
import re
import subprocess
import sys

# (file, a piece of the line's text): why no test on the simt device can execute it.
EXCEPTIONS = {}

CELLS = ("lstm", "gru", "gru_reset_before", "rnn_tanh", "rnn_relu")  # kernels/recurrent.hpp


def counts_of(build):
    """{file: {line: executions}} and {instance of a kernel: executions} for kernels/cuda."""
    notes = sorted(build.glob("tests/simt/CMakeFiles/packrnn_simt.dir/**/*.gcda"))
    if not notes:
        sys.exit(f"no coverage data under {build}: configure with PACKRNN_COVERAGE and run the simt tests")
    lines = collections.defaultdict(collections.Counter)
    kernels = collections.Counter()
    for note in notes:
        out = subprocess.run(["gcov", "--json-format", "--stdout", str(note)], check=True,
                             capture_output=True, cwd=note.parent).stdout
        for document in out.decode().splitlines():
            for entry in json.loads(document)["files"]:
                path = pathlib.Path(entry["file"])
                if path.suffix not in (".cu", ".cuh") or path.parent.name != "cuda":
                    continue
                for line in entry["lines"]:
                    lines[path.name][line["line_number"]] += line["count"]
                for function in entry["functions"]:
                    if kernel := kernel_of(function["demangled_name"]):
                        kernels[kernel] += function["execution_count"]
    return lines, kernels


def kernel_of(function):
    """"cell_kernel<Bf16, gru>" for a kernel's demangled name, None for that of another function."""
    if "{lambda" in function:
        return None
    name = re.sub(r"packrnn::(kernels::)?(cuda::)?|\(anonymous namespace\)::|^void ", "", function)
    name = re.sub(r"\(Cell\)(\d)", lambda m: CELLS[int(m[1])], name)
    match = re.match(r"(\w+_kernel(<.*?>)?)\(", name)
    return match[1].replace(" >", ">") if match else None


def is_code(text):
    """Not what only closes something, where gcov counts the destructors of an exception's way."""
    return re.search(r"[^\s})\];,]", text) is not None


def table(head, rows):
    lines = ["| " + " | ".join(head) + " |", "|---" + "|--:" * (len(head) - 1) + "|"]
    return lines + ["| " + " | ".join(str(cell) for cell in row) + " |" for row in rows]


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("build", type=pathlib.Path)
    parser.add_argument("--write", type=pathlib.Path, help="also write the tables as Markdown")
    arguments = parser.parse_args()
    folder = pathlib.Path(__file__).resolve().parents[2] / "kernels" / "cuda"
    counts, kernels = counts_of(arguments.build.resolve())

    files, missed, used = [], [], set()
    for name, lines in sorted(counts.items()):
        text = (folder / name).read_text().splitlines()
        lines = {number: count for number, count in lines.items() if is_code(text[number - 1])}
        explained = 0
        for number in sorted(n for n, count in lines.items() if count == 0):
            line = text[number - 1].strip()
            reason = next((k for k in EXCEPTIONS if k[0] == name and k[1] in line), None)
            if reason:
                used.add(reason)
                explained += 1
            else:
                missed.append(f"{name}:{number}: {line}")
        files.append((name, len(lines), sum(count > 0 for count in lines.values()), explained))
    files.append(("all", *(sum(row[i] for row in files) for i in (1, 2, 3))))
    missed += sorted(kernel for kernel, count in kernels.items() if count == 0)

    instances = collections.defaultdict(list)
    for kernel, count in kernels.items():
        instances[kernel.split("<")[0]].append(count > 0)
    rows = [(name, len(each), sum(each)) for name, each in sorted(instances.items())]
    rows.append(("all", *(sum(row[i] for row in rows) for i in (1, 2))))

    tables = (table(("file", "lines of code", "executed", "explained below"), files) + [""] +
              table(("kernel", "instances", "executed"), rows))
    print("\n".join(tables))
    if arguments.write:
        notes = [f"- `{file}`, `{text}`: {why}" for (file, text), why in EXCEPTIONS.items()]
        arguments.write.write_text(
            "# What the simt tests execute of the kernels\n\n"
            "Written by `tests/simt/coverage.py --write` after `.ci/run coverage`. A line counts as executed\n"
            "if it was in any instance of its template; of a kernel, every instance has to be. Launchers are\n"
            "counted too.\n\n" +
            "\n".join(tables + [""] + (notes or ["Nothing has to be explained."])) + "\n")
    for what in missed:
        print("never executed:", what)
    for stale in sorted(set(EXCEPTIONS) - used):
        print("exception without a line:", *stale)
    sys.exit(1 if missed or set(EXCEPTIONS) - used else 0)


if __name__ == "__main__":
    main()
