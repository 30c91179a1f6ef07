#!/usr/bin/env python3
"""Draws a learning curve that a training example wrote with --curve.

usage: plot_training.py CURVE.csv [PICTURE.svg]

Comments at the top of the file are the title. The columns before the first "name (quantity)" are
keys: the last of them is the horizontal axis, the others tell curves apart. Each quantity is a panel,
with the figures it is compared with ("# level (quantity) value name") as dotted lines.
"""

import csv
import pathlib
import re
import sys
import textwrap

import matplotlib

matplotlib.use("Agg")
# Text stays text and the same numbers give the same file.
matplotlib.rcParams.update({
    "svg.fonttype": "none", "svg.hashsalt": "packrnn", "font.size": 9,
    "axes.spines.top": False, "axes.spines.right": False})
import matplotlib.pyplot as plt  # noqa: E402  (the backend is chosen first)
import matplotlib.ticker  # noqa: E402

COLORS = ["#1f6f8b", "#b5532f", "#9a7b4f", "#5b7f3a", "#7a4f8f"]
LEVEL = re.compile(r"^level \((?P<quantity>.*)\) (?P<value>\S+) (?P<name>.*)$")
MEASURED = re.compile(r"^(?P<name>.*) \((?P<quantity>.*)\)$")


def read(path):
    """(title lines, levels, header, rows of numbers)"""
    lines = path.read_text(encoding="utf-8").splitlines()
    comments = [line[2:] for line in lines if line.startswith("# ")]
    levels = [match for match in map(LEVEL.match, comments) if match]
    title = [comment for comment in comments if not LEVEL.match(comment)]
    header, *rows = csv.reader(line for line in lines if not line.startswith("#"))
    return title, levels, header, [list(map(float, row)) for row in rows]


def draw(axes, quantity, columns, keys, rows, levels, x_name):
    axis = len(keys) - 1
    groups = {}
    for row in rows:
        groups.setdefault(tuple(row[:axis]), []).append(row)
    for which, (column, name) in enumerate(columns):
        for number, group in enumerate(groups.values()):
            points = [(row[axis], row[column]) for row in group]
            axes.plot(*zip(*points), color=COLORS[which % len(COLORS)], lw=1.4,
                      alpha=1.0 if number == 0 else 0.55, label=name if number == 0 else None)
    for level in levels:
        if level["quantity"] == quantity:
            axes.axhline(float(level["value"]), color="#444444", lw=1, ls=":")
            axes.annotate(level["name"], (1, float(level["value"])), xycoords=("axes fraction", "data"),
                          xytext=(0, 2), textcoords="offset points", ha="right", va="bottom",
                          fontsize=8, color="#444444",
                          bbox={"fc": "white", "ec": "none", "alpha": 0.7, "pad": 0.5})
    axes.xaxis.set_major_locator(matplotlib.ticker.MaxNLocator(integer=True))
    axes.set_xlabel(x_name)
    axes.set_ylabel(quantity)
    axes.legend(frameon=False)


def main():
    if len(sys.argv) not in (2, 3) or sys.argv[1] in ("-h", "--help"):
        sys.exit(__doc__)
    source = pathlib.Path(sys.argv[1])
    target = pathlib.Path(sys.argv[2]) if len(sys.argv) == 3 else source.with_suffix(".svg")
    title, levels, header, rows = read(source)
    if not rows:
        sys.exit(f"{source}: no rows")
    panels, keys = {}, []
    for column, text in enumerate(header):
        measured = MEASURED.match(text)
        if measured:
            panels.setdefault(measured["quantity"], []).append((column, measured["name"]))
        else:
            keys.append(text)
    figure, grid = plt.subplots(1, len(panels), figsize=(1 + 4.5 * len(panels), 3.8), squeeze=False,
                                layout="constrained")
    lines = [part for line in title for part in textwrap.wrap(line, 80 * len(panels))]
    figure.suptitle("\n".join(lines), fontsize=9)
    for axes, (quantity, columns) in zip(grid.flat, panels.items()):
        draw(axes, quantity, columns, keys, rows, levels, keys[-1])
    figure.savefig(target, metadata={"Date": None})
    print(target)


if __name__ == "__main__":
    main()
