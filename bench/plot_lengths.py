#!/usr/bin/env python3
"""Draws the length tables of bench/lengths: docs/results/lengths.svg.

usage: plot_lengths.py [OUTPUT.svg]
"""

import pathlib
import sys

import matplotlib

matplotlib.use("Agg")
matplotlib.rcParams.update({
    "svg.fonttype": "none", "svg.hashsalt": "packrnn", "font.size": 8,
    "axes.spines.top": False, "axes.spines.right": False, "axes.spines.left": False})
import matplotlib.pyplot as plt  # noqa: E402  (the backend is chosen first)

ROOT = pathlib.Path(__file__).resolve().parent.parent
FRAMES_PER_SECOND = 25  # as in bench/mixes.cpp
BINS = 30
# (table, what one element is), as in bench/mixes.cpp
TABLES = [("libri100", "frames"), ("jv", "frames"), ("ptb", "words"), ("wmt22", "words"),
          ("libri-dev", "frames"), ("ewt", "words"), ("speeches", "characters")]


def read(name):
    """(lengths from, to, share of sequences) pieces of uniform density."""
    lines = (ROOT / "bench/lengths" / f"{name}.csv").read_text(encoding="utf-8").splitlines()
    header, *rows = [line for line in lines if not line.startswith("#")]
    pairs = [tuple(map(float, row.split(","))) for row in rows]
    if header == "length,count":
        total = sum(count for _, count in pairs)
        return [(length - 0.5, length + 0.5, count / total) for length, count in pairs]
    points = [(quantile, seconds * FRAMES_PER_SECOND) for quantile, seconds in pairs]
    return [(a, b, q - p) for (p, a), (q, b) in zip(points, points[1:])]


def share_per_bin(pieces, edges):
    def part(piece, low, high):
        a, b, share = piece
        if a == b:
            return share if low <= a < high else 0.0
        return share * max(0.0, min(b, high) - max(a, low)) / (b - a)

    return [sum(part(piece, low, high) for piece in pieces)
            for low, high in zip(edges, edges[1:])]


def quantile(pieces, wanted):
    below = 0.0
    for a, b, share in pieces:
        if below + share >= wanted:
            return a + (b - a) * (wanted - below) / share
        below += share
    return pieces[-1][1]


def draw(axes, name, unit):
    pieces = read(name)
    longest = pieces[-1][1]
    edges = [longest * k / BINS for k in range(BINS + 1)]
    axes.stairs(share_per_bin(pieces, edges), edges, fill=True, color="#1f6f8b")
    mean = sum((a + b) / 2 * share for a, b, share in pieces)
    for value, color in ((mean, "#c0392b"), (quantile(pieces, 0.99), "#00000060")):
        axes.axvline(value, color=color, lw=1)
    axes.set_title(name, loc="left", fontsize=9, fontweight="bold")
    axes.set_xlabel(f"{unit}: mean {mean:.0f}, longest {int(longest)}")
    axes.set_xlim(0, longest)
    axes.set_yticks([])


def main():
    if len(sys.argv) > 2 or sys.argv[1:] in (["-h"], ["--help"]):
        sys.exit(__doc__)
    target = sys.argv[1] if len(sys.argv) == 2 else str(ROOT / "docs/results/lengths.svg")
    figure, grid = plt.subplots(2, 4, figsize=(10, 4), layout="constrained")
    cells = list(grid.flat)
    for axes, (name, unit) in zip(cells, TABLES):
        draw(axes, name, unit)
    legend = cells[-1]
    legend.axis("off")
    legend.plot([], [], color="#c0392b", label="mean")
    legend.plot([], [], color="#00000060", label="99 of 100 are shorter")
    legend.fill_between([], [], color="#1f6f8b", label="share of sequences")
    legend.legend(frameon=False, loc="center left")
    figure.savefig(target, metadata={"Date": None})
    print(target)


if __name__ == "__main__":
    main()
