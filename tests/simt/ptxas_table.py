#!/usr/bin/env python3
"""Registers, shared memory and spills of every kernel on every architecture.

usage: ptxas_table.py BUILD_FOLDER TABLE [--write]

Reads the .ptxas files that cmake/ptxas_log left beside the objects of packrnn_kernels. Fails if a
persistent or cluster kernel spills registers or uses a stack, or if TABLE, made with the same
compiler, says something else. --write makes TABLE anew.
"""
import argparse
import collections
import pathlib
import re
import subprocess
import sys

CELLS = ("lstm", "gru", "gru_reset_before", "rnn_tanh", "rnn_relu")  # kernels::Cell, in its order
MUST_NOT_SPILL = ("persistent", "cluster")


def compiler():
    text = subprocess.run(["nvcc", "--version"], capture_output=True, text=True).stdout
    match = re.search(r"V(\d+\.\d+\.\d+)", text)
    return match.group(1) if match else "unknown"


def short_names(mangled):
    out = subprocess.run(["c++filt"], input="\n".join(mangled), capture_output=True, text=True, check=True).stdout
    names = {}
    for symbol, name in zip(mangled, out.splitlines()):
        name = re.sub(r"\(anonymous namespace\)::|packrnn::kernels::cuda::|packrnn::", "", name)
        name = re.sub(r"^void ", "", name)
        depth = 0  # cut the parameter list: the first parenthesis outside of template arguments
        for i, c in enumerate(name):
            depth += (c == "<") - (c == ">")
            if c == "(" and depth == 0:
                name = name[:i]
                break
        names[symbol] = re.sub(r"\(kernels::Cell\)(\d)", lambda m: CELLS[int(m[1])], name).replace("> >", ">>")
    return names


def read(build):
    """(mangled kernel, architecture) -> (registers, static shared memory, spill bytes, stack bytes)"""
    found = {}
    for log in sorted(build.glob("kernels/CMakeFiles/packrnn_kernels.dir/**/*.ptxas")):
        key = spill = stack = None
        for line in log.read_text().splitlines():
            if match := re.search(r"Compiling entry function '(\w+)' for '(\w+)'", line):
                key, spill, stack = match.groups(), 0, 0
            elif match := re.search(r"(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill", line):
                stack, spill = int(match[1]), int(match[2]) + int(match[3])
            elif (match := re.search(r"Used (\d+) registers", line)) and key:
                shared = re.search(r"(\d+) bytes smem", line)
                found[key] = (int(match[1]), int(shared[1]) if shared else 0, spill, stack)
                key = None
    return found


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("build", type=pathlib.Path)
    parser.add_argument("table", type=pathlib.Path)
    parser.add_argument("--write", action="store_true")
    arguments = parser.parse_args()
    found = read(arguments.build)
    if not found:
        sys.exit(f"no kernels under {arguments.build}: was it built with CUDA?")
    names = short_names(sorted({symbol for symbol, _ in found}))
    architectures = sorted({arch for _, arch in found}, key=lambda a: int(re.sub(r"\D", "", a)))
    by_name = collections.defaultdict(dict)
    problems = []
    for (symbol, arch), (registers, shared, spill, stack) in found.items():
        by_name[names[symbol]][arch] = (registers, shared, spill, stack)
        if (spill or stack) and any(word in names[symbol] for word in MUST_NOT_SPILL):
            problems.append(f"{names[symbol]} on {arch}: {spill} bytes of spills, {stack} of stack")

    lines = [f"| kernel | {' | '.join(architectures)} | static shared memory |",
             "|---|" + "--:|" * (len(architectures) + 1)]
    for name, per_arch in sorted(by_name.items()):
        cells = []
        for arch in architectures:
            registers, _, spill, stack = per_arch.get(arch, (None, 0, 0, 0))
            cells.append("" if registers is None else str(registers) +
                         (f" (spills {spill})" if spill else "") + (f" (stack {stack})" if stack else ""))
        lines.append(f"| `{name}` | {' | '.join(cells)} | {max(s for _, s, _, _ in per_arch.values())} |")
    version = compiler()
    text = ("# Registers and static shared memory of the kernels\n\n"
            f"Registers per thread by architecture, bytes of static shared memory per block; nvcc {version}.\n"
            "Written by `tests/simt/ptxas_table.py BUILD docs/results/ptxas.md --write` and checked in CI: a\n"
            "persistent or cluster kernel that spills is an error.\n\n" + "\n".join(lines) + "\n")
    if arguments.write:
        arguments.table.write_text(text)
    else:
        committed = arguments.table.read_text() if arguments.table.exists() else ""
        if f"nvcc {version}." in committed and committed != text:
            problems.append(f"{arguments.table} is out of date: run this script with --write")
        elif not committed:
            problems.append(f"{arguments.table} is missing: run this script with --write")
    print(f"{len(by_name)} kernels, {', '.join(architectures)}, nvcc {version}")
    for problem in problems:
        print("error:", problem)
    sys.exit(1 if problems else 0)


if __name__ == "__main__":
    main()
