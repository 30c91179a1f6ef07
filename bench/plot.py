#!/usr/bin/env python3
"""Draws the results of packrnn_bench: packed_vs_padded.svg and .png beside the JSON file.

usage: plot.py packed_vs_padded.json [OUTPUT_WITHOUT_SUFFIX]

Left: valid tokens per second of each mix, packed, padded after sorting, and padded, where the bound lies
(padded speed times padded volume / valid tokens), and the fastest other engine. Right: the speed-up over the fraction of padding. Whiskers reach from
the slowest to the fastest repetition.
"""

import json
import pathlib
import statistics
import sys

import matplotlib

matplotlib.use("Agg")
# Text stays text and the same numbers give the same file.
matplotlib.rcParams.update({
    "svg.fonttype": "none", "svg.hashsalt": "packrnn", "font.size": 9,
    "axes.spines.top": False, "axes.spines.right": False})
import matplotlib.pyplot as plt  # noqa: E402  (the backend is chosen first)
import matplotlib.ticker  # noqa: E402

PACKED, PADDED, BUCKETED, OTHER, BOUND = "#1f6f8b", "#c9b79c", "#9a7b4f", "#b5532f", "#444444"


def best_other(row, threads):
    """Tokens per second of the fastest other engine on the first batch, or None."""
    beside = row.get("beside", {"contestants": []})
    times = [statistics.median(c["cpu_s" if threads == 1 else "wall_s"])
             for c in beside["contestants"] if c["engine"] != "packrnn" and c["wall_s"]]
    return beside["tokens"] / min(times) if times else None


def draw_speeds(axes, rows, threads):
    width = 0.27
    for side, key, color in ((-1, "packed", PACKED), (0, "bucketed", BUCKETED), (1, "padded", PADDED)):
        some = [(place, row) for place, row in enumerate(rows) if row.get(key)]
        rates = [row["tokens"] / row[key]["median_s"] / 1e3 for _, row in some]
        slowest = [row["tokens"] / row[key]["max_s"] / 1e3 for _, row in some]
        fastest = [row["tokens"] / row[key]["min_s"] / 1e3 for _, row in some]
        below = [rate - low for rate, low in zip(rates, slowest)]
        above = [high - rate for rate, high in zip(rates, fastest)]
        axes.bar([place + side * width for place, _ in some], rates, width, color=color,
                 label="padded after sorting" if key == "bucketed" else key,
                 yerr=(below, above), ecolor="#00000070", capsize=2)
    others = [(place, best_other(row, threads)) for place, row in enumerate(rows)]
    others = [(place, rate) for place, rate in others if rate]
    if others:
        axes.plot([place for place, _ in others], [rate / 1e3 for _, rate in others], "D", ms=4, color=OTHER,
                  label="best other engine")
    for place, row in enumerate(rows):
        bound = row["padded_tokens_per_s"] * row["bound"] / 1e3
        axes.plot([place - 1.5 * width, place - width / 2], [bound, bound], color=BOUND, lw=1.5,
                  label="bound" if place == 0 else None)
        axes.annotate(f"{row['speed_up']:.2f}x", (place - width, 0), xytext=(0, 4),
                      textcoords="offset points", ha="center", va="bottom", rotation=90,
                      color="white", fontsize=8)
    axes.set_xticks(range(len(rows)), [row["name"] for row in rows], rotation=30, ha="right")
    axes.set_ylabel("valid tokens per second, thousands")
    axes.set_ylim(bottom=0)
    axes.legend(frameon=False, ncols=5, loc="lower center", bbox_to_anchor=(0.5, 1.0))


def draw_speed_up(axes, rows):
    most = max(row["padding_fraction"] for row in rows)
    curve = [min(0.95, max(0.9, most + 0.03)) * k / 100 for k in range(101)]
    axes.plot([100 * p for p in curve], [1 / (1 - p) for p in curve], color=BOUND, lw=1.2,
              label="bound 1 / (1 - padding)")
    axes.axhline(1, color="#00000030", lw=0.8)
    axes.plot([100 * row["padding_fraction"] for row in rows], [row["speed_up"] for row in rows],
              "o", color=PACKED, label="measured")
    axes.plot([100 * row["padding_fraction"] for row in rows],
              [row["speed_up_with_packing"] for row in rows],
              "o", mfc="none", color=PACKED, ms=8, lw=0.8, label="with packing input, padding output")
    for row in rows:
        axes.annotate(row["name"], (100 * row["padding_fraction"], row["speed_up"]),
                      xytext=(6, -8), textcoords="offset points", fontsize=7, rotation=-35,
                      rotation_mode="anchor", va="top")
    axes.set_xlabel("padding, % of the padded batch")
    axes.set_ylabel("speed-up, packed over padded")
    axes.set_yscale("log", base=2)
    axes.yaxis.set_major_formatter(matplotlib.ticker.FormatStrFormatter("%g"))
    axes.set_ylim(bottom=0.8)
    axes.set_xlim(0, 100)
    axes.legend(frameon=False, loc="upper left")


def title(results):
    machine, layer = results["machine"], results["layer"]
    directions = "two directions" if layer["bidirectional"] else "one direction"
    layers = "1 layer" if layer["layers"] == 1 else f"{layer['layers']} layers"
    return (f"{layer['cell'].upper()}, {layers}, {directions}, "
            f"H = {layer['hidden']}, {layer['dtype']}, batches of {results['batch']}\n"
            f"{machine['cpu']}, {machine['target']}, {machine['threads']} threads, "
            f"commit {results['commit']}, {results['date'][:10]}")


def main():
    if len(sys.argv) not in (2, 3) or sys.argv[1] in ("-h", "--help"):
        sys.exit(__doc__)
    source = pathlib.Path(sys.argv[1])
    target = sys.argv[2] if len(sys.argv) == 3 else str(source.with_suffix(""))
    results = json.loads(source.read_text(encoding="utf-8"))
    rows = sorted(results["rows"], key=lambda row: row["padding_fraction"])
    if not rows:
        sys.exit(f"{source}: no rows")
    figure, (left, right) = plt.subplots(
        1, 2, figsize=(11, 4.4), layout="constrained", gridspec_kw={"width_ratios": [3, 2]})
    figure.suptitle(title(results), fontsize=9)
    draw_speeds(left, rows, results["machine"]["threads"])
    draw_speed_up(right, rows)
    for suffix, metadata in ((".svg", {"Date": None}), (".png", None)):
        figure.savefig(target + suffix, dpi=150, metadata=metadata)
        print(target + suffix)


if __name__ == "__main__":
    main()
