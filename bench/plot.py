#!/usr/bin/env python3
"""Draws the results of packrnn_bench: packed_vs_padded.svg and .png beside the JSON file.

usage: plot.py packed_vs_padded.json [OUTPUT_WITHOUT_SUFFIX]

Left: valid tokens per second of each mix, packed and padded, and where the bound lies (padded speed
times padded volume / valid tokens). Right: the speed-up over the fraction of padding. Whiskers reach from
the slowest to the fastest repetition.
"""

import json
import pathlib
import sys

import matplotlib

matplotlib.use("Agg")
# Text stays text and the same numbers give the same file.
matplotlib.rcParams.update({
    "svg.fonttype": "none", "svg.hashsalt": "packrnn", "font.size": 9,
    "axes.spines.top": False, "axes.spines.right": False})
import matplotlib.pyplot as plt  # noqa: E402  (the backend is chosen first)
import matplotlib.ticker  # noqa: E402

PACKED, PADDED, BOUND = "#1f6f8b", "#c9b79c", "#444444"


def draw_speeds(axes, rows):
    places = range(len(rows))
    width = 0.38
    for side, key, color in ((-1, "packed", PACKED), (1, "padded", PADDED)):
        rates = [row[f"{key}_tokens_per_s"] / 1e3 for row in rows]
        slowest = [row["tokens"] / row[key]["max_s"] / 1e3 for row in rows]
        fastest = [row["tokens"] / row[key]["min_s"] / 1e3 for row in rows]
        below = [rate - low for rate, low in zip(rates, slowest)]
        above = [high - rate for rate, high in zip(rates, fastest)]
        axes.bar([p + side * width / 2 for p in places], rates, width, color=color, label=key,
                 yerr=(below, above), ecolor="#00000070", capsize=2)
    for place, row in zip(places, rows):
        bound = row["padded_tokens_per_s"] * row["bound"] / 1e3
        axes.plot([place - width, place], [bound, bound], color=BOUND, lw=1.5,
                  label="bound" if place == 0 else None)
        axes.annotate(f"{row['speed_up']:.2f}x", (place - width / 2, 0), xytext=(0, 4),
                      textcoords="offset points", ha="center", va="bottom", rotation=90,
                      color="white", fontsize=8)
    axes.set_xticks(list(places), [row["name"] for row in rows], rotation=30, ha="right")
    axes.set_ylabel("valid tokens per second, thousands")
    axes.set_ylim(bottom=0)
    axes.legend(frameon=False, ncols=3, loc="lower center", bbox_to_anchor=(0.5, 1.0))


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
    draw_speeds(left, rows)
    draw_speed_up(right, rows)
    for suffix, metadata in ((".svg", {"Date": None}), (".png", None)):
        figure.savefig(target + suffix, dpi=150, metadata=metadata)
        print(target + suffix)


if __name__ == "__main__":
    main()
