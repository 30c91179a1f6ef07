#!/usr/bin/env python3
"""Draws the results of packrnn_scale: OUTPUT.svg and .png.

usage: plot_scale.py scale.json [OUTPUT_WITHOUT_SUFFIX]

One panel for each series: tokens per second (and, dotted, memory) over what grows; for the padding, the
speed-up of packed over padded and its bound. The last panel: the latency of a step of a stream.
"""

import json
import pathlib
import sys

import matplotlib

matplotlib.use("Agg")
# Text stays text and the same numbers give the same file.
matplotlib.rcParams.update({
    "svg.fonttype": "none", "svg.hashsalt": "packrnn", "font.size": 9,
    "axes.spines.top": False})
import matplotlib.pyplot as plt  # noqa: E402  (the backend is chosen first)

SPEED, MEMORY, BOUND, LOADED = "#1f6f8b", "#b5532f", "#444444", "#b5532f"


def plain(axis):
    axis.set_major_formatter(lambda value, _: f"{value:,g}")


def draw_series(axes, series):
    points = series["points"]
    x = [point["value"] for point in points]
    axes.plot(x, [point["tokens"] / point["seconds"] / 1e3 for point in points], "o-", ms=4, color=SPEED)
    axes.set_xscale("log", base=2 if max(x) < 2e4 else 10)
    axes.set_yscale("log")
    axes.set_xlabel(series["axis"])
    axes.set_ylabel("thousand tokens/s", color=SPEED)
    memory = axes.twinx()
    total = [sum(point[part] for part in ("weights_bytes", "data_bytes", "scratch_bytes")) / 2**20 for point in points]
    memory.plot(x, total, ":", color=MEMORY)
    memory.set_yscale("log")
    memory.set_ylabel("MiB", color=MEMORY)
    for axis in (axes.xaxis, axes.yaxis, memory.yaxis):
        plain(axis)


def draw_padding(axes, series):
    points = series["points"]
    x = [100 * point["value"] for point in points]
    axes.plot(x, [point["bound"] for point in points], color=BOUND, lw=1.2, label="bound 1 / (1 - padding)")
    axes.plot(x, [point["padded_over_packed"] for point in points], "o", color=SPEED, label="packed over padded")
    axes.set_yscale("log", base=2)
    plain(axes.yaxis)
    axes.set_xlabel("padding, %")
    axes.set_ylabel("speed-up")
    axes.legend(frameon=False, loc="upper left")


def draw_latency(axes, rows):
    for loaded, color in ((False, SPEED), (True, LOADED)):
        some = [row for row in rows if row["loaded"] == loaded]
        for key, style, name in (("p50_s", "-", "p50"), ("p99_s", "--", "p99"), ("p999_s", ":", "p99.9")):
            axes.plot([row["batch"] for row in some], [1e6 * row[key] for row in some], style, marker="o", ms=3,
                      color=color, label=f"{name}, {'loaded' if loaded else 'quiet'}")
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    plain(axes.xaxis)
    plain(axes.yaxis)
    axes.set_xlabel("streams")
    axes.set_ylabel("microseconds a step")
    axes.legend(frameon=False, fontsize=7)


def main():
    if len(sys.argv) not in (2, 3) or sys.argv[1] in ("-h", "--help"):
        sys.exit(__doc__)
    source = pathlib.Path(sys.argv[1])
    target = sys.argv[2] if len(sys.argv) == 3 else str(source.with_suffix(""))
    results = json.loads(source.read_text(encoding="utf-8"))
    panels = [series for series in results["series"] if series["points"]]
    count = len(panels) + bool(results["latency"])
    if count == 0:
        sys.exit(f"{source}: nothing to draw")
    columns = min(3, count)
    figure, grid = plt.subplots(-(-count // columns), columns, figsize=(4 * columns, 3.1 * -(-count // columns)),
                                squeeze=False, layout="constrained")
    places = list(grid.flat)
    for axes, series in zip(places, panels):
        axes.set_title(series["what"], fontsize=8, loc="left")
        (draw_padding if series["name"] == "padding" else draw_series)(axes, series)
    if results["latency"]:
        axes = places[len(panels)]
        axes.set_title("one step of a stream, LSTM, I = H = 256, one thread", fontsize=8, loc="left")
        draw_latency(axes, results["latency"])
    for axes in places[count:]:
        axes.set_visible(False)
    figure.suptitle(f"{results['cpu']}, {results['target']}, {results['threads']} threads, commit {results['commit']}, "
                    f"{results['date'][:10]}", fontsize=9)
    for suffix, metadata in ((".svg", {"Date": None}), (".png", None)):
        figure.savefig(target + suffix, dpi=110, metadata=metadata)
        print(target + suffix)


if __name__ == "__main__":
    main()
