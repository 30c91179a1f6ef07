#!/usr/bin/env python3
"""Runs the tests of the kernels under many schedules of the simt device, until one fails.

usage: schedules.py BUILD [--seeds N] [--first SEED] [--only NAME] [--write docs/results/schedules.md]

Each run is one test file, with small shapes (tests/shapes.hpp), under one seed. The seed also says
in which order threads run, how often one is interrupted at an atomic access, and which combinations
of a case's parameters are run. The first failure ends it all and names the command that repeats it.
As many runs at a time as there are CPUs.
"""
import argparse
import concurrent.futures
import os
import pathlib
import shlex
import subprocess
import sys
import time

# Per thousand accesses at which a thread gives way. Without it, forward and reverse are the same
# for every seed but for streams, so they have it always.
SCHEDULES = [("random", 0), ("priority", 0), ("random", 50), ("priority", 50), ("forward", 20),
             ("random", 200), ("priority", 200), ("reverse", 20)]
# Folder and files of its tests; of the layers, the one that goes through all kernels.
TESTS = [("kernels", name) for name in
         ("exact_recurrent", "persistent", "persistent_backward", "cluster", "tensor_step", "recurrent",
          "recurrent_backward", "stack", "pack", "layout", "reduce", "linear", "elementwise", "dropout")] + [("layers", "forward")]


def run(build, folder, name, seed):
    """The command that was run and what it printed, if it failed."""
    order, preempt = SCHEDULES[seed % len(SCHEDULES)]
    settings = {"PACKRNN_DEVICE": "cuda", "PACKRNN_SHAPES": "small", "PACKRNN_SIMT_SEED": str(seed),
                "PACKRNN_SIMT_ORDER": order, "PACKRNN_SIMT_PREEMPT": str(preempt)}
    command = [str(build / f"tests/{folder}/simt_{folder}_tests"), "--filenames-as-tags", f"[#{name}_test]",
               "--warn", "NoTests"]
    result = subprocess.run(command, env={**os.environ, **settings}, stdout=subprocess.PIPE,
                            stderr=subprocess.STDOUT, text=True)
    if result.returncode == 0:
        return None
    shown = " ".join([f"{k}={v}" for k, v in settings.items()] + [shlex.quote(c) for c in command])
    return f"{shown}\nexit status {result.returncode}\n{result.stdout[-6000:]}"


def table(rows, seeds):
    orders = ", ".join(f"{order} {preempt}" for order, preempt in SCHEDULES)
    commit = subprocess.run(["git", "rev-parse", "--short", "HEAD"], cwd=pathlib.Path(__file__).parent,
                            stdout=subprocess.PIPE, text=True).stdout.strip()
    return f"""# Schedules

Written at {commit} by `tests/simt/schedules.py build/release --seeds {len(seeds)} --write docs/results/schedules.md`: each
test under seeds {seeds[0]} to {seeds[-1]}, with small shapes ([shapes.hpp](../../tests/shapes.hpp)). Seeds take these orders in
turn, each with its interruptions per thousand atomic accesses: {orders}.

| test | seeds | seconds | result |
|---|---|---|---|
""" + "".join(f"| `{name}` | {runs} | {seconds:.0f} | passed |\n" for name, runs, seconds in rows)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("build", type=pathlib.Path)
    parser.add_argument("--seeds", type=int, default=200, help="how many")
    parser.add_argument("--first", type=int, default=1, help="the first of them")
    parser.add_argument("--only", help="the test of this name, such as kernels.pack")
    parser.add_argument("--write", type=pathlib.Path, help="write the table as Markdown")
    arguments = parser.parse_args()
    seeds = range(arguments.first, arguments.first + arguments.seeds)
    tests = [t for t in TESTS if arguments.only in (None, ".".join(t))]
    if not tests or not seeds:
        sys.exit("nothing to run")
    rows = []
    for folder, name in tests:
        test = f"simt.{folder}.{name}"
        start = time.monotonic()
        with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
            results = pool.map(lambda seed: run(arguments.build.resolve(), folder, name, seed), seeds)
            for seed, failure in zip(seeds, results):
                if failure:
                    pool.shutdown(wait=False, cancel_futures=True)
                    sys.exit(f"{test} fails under seed {seed}\n{failure}")
        rows.append((test, len(seeds), time.monotonic() - start))
        print(f"{test}: {len(seeds)} schedules, {rows[-1][2]:.0f} s", flush=True)
    if arguments.write:
        arguments.write.write_text(table(rows, seeds))


if __name__ == "__main__":
    main()
