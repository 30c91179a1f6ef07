#!/usr/bin/env python3
"""Draws the results of packrnn_race: OUTPUT.svg and .png.

usage: plot_race.py OUTPUT_WITHOUT_SUFFIX RACE.json...

One panel for each file and cell: tokens per second of every engine as a multiple of the fastest that is
not ours, by workload, and the bound of the machine.
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

COLORS = {"packrnn packed": "#1f6f8b", "packrnn packed bf16 weights": "#0d3b4a",
          "packrnn padded": "#9cc4cf",
          "torch packed": "#b5532f", "torch padded": "#dcb09c", "onednn padded": "#6b8f3c", "onnxruntime lengths": "#7a5c99",
          "onnxruntime padded": "#c3b3d3"}


def seconds(contestant, threads):
    return statistics.median(contestant["cpu_s" if threads == 1 else "wall_s"])


def draw(axes, race, cell):
    results = [result for result in race["results"] if result["cell"] == cell]
    threads = race["threads"]
    present = {f"{c['engine']} {c['variant']}" for result in results for c in result["contestants"]}
    colors = {name: color for name, color in COLORS.items() if name in present}
    width = 0.9 / len(colors)
    named = set()
    for place, result in enumerate(results):
        times = {f"{c['engine']} {c['variant']}": seconds(c, threads) for c in result["contestants"]}
        others = [time for name, time in times.items() if not name.startswith("packrnn")]
        best = min(others) if others else times["packrnn packed"]
        for slot, (name, color) in enumerate(colors.items()):
            if name not in times:
                continue
            axes.bar(place + (slot - (len(colors) - 1) / 2) * width, best / times[name], width, color=color,
                     label=None if name in named else name)
            named.add(name)
        bound = best / result["bound_s"]
        axes.plot([place - 0.45, place + 0.45], [bound, bound], color="#444444", lw=1.2,
                  label=None if "bound" in named else "bound")
        named.add("bound")
    axes.axhline(1, color="#00000030", lw=0.8)
    axes.set_xticks(range(len(results)), [result["workload"] for result in results])
    axes.set_yscale("log", base=2)
    axes.yaxis.set_major_formatter(lambda value, _: f"{value:g}x")
    axes.set_title(f"{cell.upper()}, {threads} thread{'s' if threads > 1 else ''}", fontsize=9, loc="left")


def main():
    if len(sys.argv) < 3 or sys.argv[1] in ("-h", "--help"):
        sys.exit(__doc__)
    races = [json.loads(pathlib.Path(name).read_text(encoding="utf-8")) for name in sys.argv[2:]]
    panels = [(race, cell) for race in races for cell in ("lstm", "gru")
              if any(result["cell"] == cell for result in race["results"])]
    if not panels:
        sys.exit("there is nothing to draw")
    rows = (len(panels) + 1) // 2
    figure, grid = plt.subplots(rows, min(2, len(panels)), figsize=(11, 3.2 * rows), squeeze=False)
    for axes, panel in zip(grid.flat, panels):
        draw(axes, *panel)
    for axes in list(grid.flat)[len(panels):]:
        axes.set_visible(False)
    for row in grid:
        row[0].set_ylabel("tokens per second,\nbest other engine = 1")
    handles, labels = grid.flat[0].get_legend_handles_labels()
    figure.legend(handles, labels, ncols=4, frameon=False, loc="upper center")
    figure.suptitle(f"{races[0]['cpu']}, {races[0]['target']}", x=0.01, y=0.012, ha="left", va="bottom", fontsize=8)
    figure.tight_layout(rect=(0, 0.02, 1, 0.9 if rows > 1 else 0.8))
    output = pathlib.Path(sys.argv[1])
    for suffix in (".svg", ".png"):
        figure.savefig(output.with_suffix(suffix), dpi=110, metadata={"Date": None} if suffix == ".svg" else {})
        print(output.with_suffix(suffix))


if __name__ == "__main__":
    main()
