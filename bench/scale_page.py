#!/usr/bin/env python3
"""Writes what packrnn_scale found as a page with tables, OUTPUT.md, and a picture, OUTPUT.svg and .png.

usage: scale_page.py OUTPUT_WITHOUT_SUFFIX COMMAND scale.json

COMMAND is how the results were made. The picture: one panel for each series: tokens per second (and, dotted, memory) over what grows; for the padding, the
speed-up of packed over padded and its bound. The last panel: the latency of a step of a stream.
"""

import json
import math
import pathlib
import sys

import matplotlib

matplotlib.use("Agg")
# Text stays text and the same numbers give the same file.
matplotlib.rcParams.update({
    "svg.fonttype": "none", "svg.hashsalt": "packrnn", "font.size": 9,
    "axes.spines.top": False})
import matplotlib.pyplot as plt  # noqa: E402  (the backend is chosen first)
import matplotlib.ticker  # noqa: E402

SPEED, MEMORY, BOUND, LOADED = "#1f6f8b", "#b5532f", "#444444", "#b5532f"


def plain(axis):
    axis.set_major_formatter(lambda value, _: f"{value:,g}")
    axis.set_minor_formatter(matplotlib.ticker.NullFormatter())


def decades(set_limits, values):
    """Whole powers of ten, so that no panel magnifies a few per cent."""
    set_limits(10 ** math.floor(math.log10(min(values))), 10 ** math.ceil(math.log10(max(values) * 1.001)))


def draw_series(axes, series):
    points = series["points"]
    x = [point["value"] for point in points]
    rates = [point["tokens"] / point["seconds"] / 1e3 for point in points]
    axes.plot(x, rates, "o-", ms=4, color=SPEED)
    axes.set_xscale("log", base=2 if max(x) < 2e4 else 10)
    axes.set_yscale("log")
    axes.set_xlabel(series["axis"])
    axes.set_ylabel("thousand tokens/s", color=SPEED)
    memory = axes.twinx()
    total = [sum(point[part] for part in ("weights_bytes", "data_bytes", "scratch_bytes")) / 2**20 for point in points]
    memory.plot(x, total, ":", color=MEMORY)
    memory.set_yscale("log")
    decades(axes.set_ylim, rates)
    decades(memory.set_ylim, total)
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
    axes.legend(frameon=False, fontsize=7, ncols=2, loc="lower center", bbox_to_anchor=(0.5, 0.62))


def significant(value):
    return f"{value:,.0f}" if value >= 100 else f"{value:.1f}" if value >= 10 else f"{value:.2f}"


def series_table(series):
    padding = series["name"] == "padding"
    rows = [f"**{series['what']}**\n",
            f"| {series['axis']} | tokens | ms | k tokens/s | weights, MiB | data, MiB | scratch, MiB |"
            + (" over padded | bound |" if padding else ""),
            "|--:|--:|--:|--:|--:|--:|--:|" + ("--:|--:|" if padding else "")]
    for point in series["points"]:
        sizes = [significant(point[part] / 2**20) for part in ("weights_bytes", "data_bytes", "scratch_bytes")]
        value = f"{100 * point['value']:.0f} %" if padding else f"{point['value']:,.0f}"
        rows.append(" | ".join([f"| {value}", f"{point['tokens']:,}", significant(1e3 * point["seconds"]),
                                significant(point["tokens"] / point["seconds"] / 1e3), *sizes]) + " |"
                    + (f" {point['padded_over_packed']:.2f} | {point['bound']:.2f} |" if padding else ""))
    return "\n".join(rows) + "\n"


def latency_table(rows):
    text = ["**One step of a stream: LSTM, I = H = 256, one thread; microseconds**\n",
            "| streams | machine | p50 | p99 | p99.9 | longest |", "|--:|---|--:|--:|--:|--:|"]
    for row in rows:
        times = " | ".join(f"{1e6 * row[key]:,.1f}" for key in ("p50_s", "p99_s", "p999_s", "max_s"))
        text.append(f"| {row['batch']} | {'loaded' if row['loaded'] else 'quiet'} | {times} |")
    return "\n".join(text) + "\n"


def page(results, command, picture):
    text = [f"# Growing work\n\n{results['cpu']}, {results['cpus']} CPUs, {results['threads']} threads, {results['target']}; "
            f"commit {results['commit']}; {results['date'][:10]}:\n\n    {command}\n",
            f"Medians; [benchmarks.md](../benchmarks.md#growing-work) says what is measured.\n\n![The same]({picture})\n"]
    text += [series_table(series) for series in results["series"] if series["points"]]
    if results["latency"]:
        text.append(latency_table(results["latency"]))
    if results["call_s"]:
        text.append(f"**A call of one step of one sequence** (LSTM, I = H = 64, one thread): {1e6 * results['call_s']:.2f} us.\n")
    return "\n".join(text)


def main():
    if len(sys.argv) != 4:
        sys.exit(__doc__)
    target, command, source = sys.argv[1:]
    results = json.loads(pathlib.Path(source).read_text(encoding="utf-8"))
    name = pathlib.Path(target).name
    pathlib.Path(target + ".md").write_text(page(results, command, name + ".svg"), encoding="utf-8")
    print(target + ".md")
    panels = [series for series in results["series"] if series["points"]]
    count = len(panels) + bool(results["latency"])
    if count == 0:
        return
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
