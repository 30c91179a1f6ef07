#!/usr/bin/env python3
"""Draws the results of packrnn_bench on a GPU: microseconds of each engine, problem by problem.

usage: plot_device.py DEVICE.json PICTURE.svg

One panel per mode; bars from the fastest run of each kind, and the roofline as a mark.
"""

import json
import sys

import matplotlib

matplotlib.use("Agg")
# Text stays text and the same numbers give the same file.
matplotlib.rcParams.update({
    "svg.fonttype": "none", "svg.hashsalt": "packrnn", "font.size": 8,
    "axes.spines.top": False, "axes.spines.right": False})
import matplotlib.pyplot as plt  # noqa: E402  (the backend is chosen first)

KINDS = [("packrnn", "packed auto", "packed", "#1f6f8b"),
         ("packrnn", "packed step", "packed, step path", "#7fb3c4"),
         ("packrnn", "padded", "padded", "#c9b79c"),
         ("cuDNN", "STANDARD SEQ_MAJOR_PACKED", "cuDNN standard packed", "#76b041"),
         ("cuDNN", "", "cuDNN, fastest", "#3f6b1d"),
         ("PyTorch", "packed", "PyTorch packed", "#d1603d")]


def time_of(problem, who, what):
    times = [run["warm"]["median_s"] * 1e6 for run in problem["runs"]
             if run["who"] == who and run["what"].startswith(what) and run.get("warm")
             and not run["agreement"].startswith("WRONG")]
    return min(times, default=0.0)


def draw(axes, mode, problems):
    height = 0.8 / len(KINDS)
    for k, (who, what, label, color) in enumerate(KINDS):
        times = [time_of(problem, who, what) for problem in problems]
        axes.barh([i + (k - len(KINDS) / 2 + 0.5) * height for i in range(len(problems))], times, height,
                  color=color, label=label)
    for i, problem in enumerate(problems):
        bound = problem["bound_s"] * 1e6
        axes.plot([bound, bound], [i - 0.4, i + 0.4], color="#444444", lw=1.2, label="roofline" if i == 0 else None)
    axes.set_yticks(range(len(problems)), [
        f"{p['cell']}, {p['mix']}, H {p['hidden']}, B {p['batch']}" for p in problems])
    axes.invert_yaxis()
    axes.set_title(mode)
    axes.set_xlabel("us")
    if any(time_of(p, who, what) > 0 for p in problems for who, what, _, _ in KINDS):
        axes.set_xscale("log")


def main():
    if len(sys.argv) != 3 or sys.argv[1] in ("-h", "--help"):
        sys.exit(__doc__)
    with open(sys.argv[1], encoding="utf-8") as file:
        results = json.load(file)
    modes = {}
    for problem in results["problems"]:
        modes.setdefault(problem["mode"], []).append(problem)
    if not modes:
        sys.exit("no results to draw")
    most = max(len(problems) for problems in modes.values())
    figure, panels = plt.subplots(1, len(modes), figsize=(5 * len(modes), 1.5 + 0.6 * most), layout="constrained",
                                  squeeze=False)
    for axes, (mode, problems) in zip(panels[0], modes.items()):
        draw(axes, mode, problems)
    panels[0][0].legend(frameon=False, fontsize=7)
    simulated = " (simulated: meaningless)" if results["simulated"] else ""
    figure.suptitle(f"{results['device']}{simulated}, commit {results['commit']}, {results['date'][:10]}")
    figure.savefig(sys.argv[2], metadata={"Date": None})
    print(sys.argv[2])


if __name__ == "__main__":
    main()
