#!/usr/bin/env python3
"""Writes what packrnn_race found as a page: OUTPUT.md, and its roofline as OUTPUT_roofline.svg and .png.

usage: race_page.py OUTPUT_WITHOUT_SUFFIX COMMAND RACE.json...

COMMAND is how the results were made. The picture of the race itself is OUTPUT.svg (plot_race.py).
"""

import json
import math
import pathlib
import statistics
import sys

from plot_race import plt, seconds

GATES = {"lstm": 4, "gru": 3}
THIRD = {False: ("packed bf16 weights", "bf16 weights"), True: ("padded", "padded")}  # by training
TRAINING_MEAN_GOAL = 2.7  # more than the goals of the batches together
OURS, OTHER = "#1f6f8b", "#b5532f"


def spread(contestant, threads):
    times = contestant["cpu_s" if threads == 1 else "wall_s"]
    return (max(times) - min(times)) / statistics.median(times)


def name(contestant):
    return f"{contestant['engine']} {contestant['variant']}"


def best_other(result, threads):
    others = [c for c in result["contestants"] if c["engine"] != "packrnn"]
    return min(others, key=lambda c: seconds(c, threads)) if others else None


def trains(race):
    return race.get("training", False)


def flops(race, result):
    directions = 2 if result["bidirectional"] else 1
    total = 0
    for layer in range(result["layers"]):
        inputs = result["input"] if layer == 0 else directions * result["hidden"]
        total += 2 * GATES[result["cell"]] * result["hidden"] * (inputs + result["hidden"])
    return (3 if trains(race) else 1) * total * directions * result["tokens"]


def weight_bytes_read(race, result):
    """Of the recurrent weights, once in every step, and once more on the way back."""
    directions = 2 if result["bidirectional"] else 1
    return (8 if trains(race) else 4) * GATES[result["cell"]] * result["hidden"] ** 2 * max(result["lengths"]) * result["layers"] * directions


def geometric_mean(values):
    return math.exp(sum(map(math.log, values)) / len(values))


def text_of(ratio):
    return "-" if math.isnan(ratio) else f"{ratio:.2f}"


def race_table(race, cell):
    threads = race["threads"]
    third, label = THIRD[trains(race)]
    rows = [f"| {cell.upper()}, {threads} thread{'s' if threads > 1 else ''} | padding | packed | spread | padded | best other | | "
            f"ratio | goal | {label} | of the bound |", "|---|--:|--:|--:|--:|---|--:|--:|--:|--:|--:|"]
    ratios, goals, parts, stored_ratios = [], [], [], []
    for result in (r for r in race["results"] if r["cell"] == cell):
        ways = {name(c): c for c in result["contestants"]}
        packed, padded = ways["packrnn packed"], ways["packrnn padded"]
        other = best_other(result, threads)
        rate = lambda c: result["tokens"] / seconds(c, threads) / 1e3  # noqa: E731
        padding = 1 - result["tokens"] / (max(result["lengths"]) * len(result["lengths"]))
        goal = result["goals"][0 if threads == 1 else 1]
        ratio = rate(packed) / rate(other) if other else math.nan
        stored = rate(ways[f"packrnn {third}"]) / rate(other) if other and f"packrnn {third}" in ways else math.nan
        part = result["bound_s"] / seconds(packed, threads)
        for values, value in ((ratios, ratio), (goals, goal), (parts, part), (stored_ratios, stored)):
            values.append(value)
        rows.append(f"| {result['workload']} {result['what']} | {100 * padding:.0f}% | {rate(packed):.1f} | "
                    f"{100 * spread(packed, threads):.0f}% | {rate(padded):.1f} | {name(other) if other else 'none'} | "
                    f"{rate(other):.1f} | **{ratio:.2f}** | {goal:.2f} | {text_of(stored)} | {100 * part:.0f}% |")
    goal = TRAINING_MEAN_GOAL if trains(race) else geometric_mean(goals)
    rows.append(f"| geometric mean | | | | | | | **{geometric_mean(ratios):.2f}** | {goal:.2f} | "
                f"{text_of(geometric_mean(stored_ratios))} | {100 * geometric_mean(parts):.0f}% |")
    return "\n".join(rows)


def memory_table(race):
    rows = ["| | packed | PyTorch packed | PyTorch padded | packed, of PyTorch packed |", "|---|--:|--:|--:|--:|"]
    parts = []
    for result in race["results"]:
        ways = {name(c): c["memory_bytes"] for c in result["contestants"]}
        sizes = [ways.get(way, 0) for way in ("packrnn packed", "torch packed", "torch padded")]
        cells = " | ".join(f"{size / 2**20:.1f}" if size else "-" for size in sizes)
        part = "-"
        if sizes[0] and sizes[1]:
            parts.append(sizes[0] / sizes[1])
            part = f"{100 * parts[-1]:.0f}%"
        rows.append(f"| {result['workload']} {result['cell']} | {cells} | {part} |")
    if parts:
        rows.append(f"| geometric mean | | | | {100 * geometric_mean(parts):.0f}% |")
    return "\n".join(rows)


def roofline_table(race):
    threads, peak = race["threads"], race["limits"]["flops"]
    rows = ["| | operations | per byte of recurrent weights | ours | of the peak | of the bound | best other, of the bound | "
            "the bound allows, over the best other |", "|---|--:|--:|--:|--:|--:|--:|--:|"]
    for result in race["results"]:
        ours = seconds(result["contestants"][0], threads)
        other = best_other(result, threads)
        theirs = seconds(other, threads) if other else math.nan
        rows.append(f"| {result['workload']} {result['cell']} | {flops(race, result) / 1e6:.0f} M | "
                    f"{flops(race, result) / weight_bytes_read(race, result):.1f} | {flops(race, result) / ours / 1e9:.0f} GFLOP/s | "
                    f"{100 * flops(race, result) / ours / peak:.0f}% | {100 * result['bound_s'] / ours:.0f}% | "
                    f"{100 * result['bound_s'] / theirs:.0f}% | {theirs / result['bound_s']:.2f} |")
    return "\n".join(rows)


def bandwidth_text(race):
    sizes = [(size, rate) for size, rate in race["limits"]["bytes_per_s"]]
    return ", ".join(f"{rate / 1e9:.0f} from {size // 1024} KiB" if size < 2**20 else f"{rate / 1e9:.0f} from {size // 2**20} MiB"
                     for size, rate in sizes)


def draw_roofline(races, output):
    figure, grid = plt.subplots(1, len(races), figsize=(5.5 * len(races), 4), squeeze=False, layout="constrained")
    for axes, race in zip(grid.flat, races):
        threads, peak = race["threads"], race["limits"]["flops"]
        x = [2 ** (k / 8) for k in range(-10, 60)]
        for size, rate in race["limits"]["bytes_per_s"][::2]:
            axes.plot(x, [min(peak, rate * v) / 1e9 for v in x], color="#00000055", lw=0.8)
            unit = f"{size // 2**20} MiB" if size >= 2**20 else f"{size // 1024} KiB"
            axes.annotate(unit, (x[0], rate * x[0] / 1e9), fontsize=6, ha="right", va="center", color="#000000aa")
        for result in race["results"]:
            at = flops(race, result) / weight_bytes_read(race, result)
            marker = "o" if result["cell"] == "lstm" else "s"
            other = best_other(result, threads)
            for contestant, color in ((result["contestants"][0], OURS), (other, OTHER)):
                if contestant:
                    axes.plot(at, flops(race, result) / seconds(contestant, threads) / 1e9, marker, ms=5, color=color)
            if result["cell"] == "lstm":
                axes.annotate(result["workload"], (at, flops(race, result) / seconds(result["contestants"][0], threads) / 1e9),
                              xytext=(5, -8), textcoords="offset points", fontsize=7)
        for label, color, marker in (("packrnn, LSTM", OURS, "o"), ("packrnn, GRU", OURS, "s"),
                                     ("best other, LSTM", OTHER, "o"), ("best other, GRU", OTHER, "s")):
            axes.plot([], [], marker, color=color, ms=5, label=label)
        axes.set_xscale("log", base=2)
        axes.set_yscale("log", base=2)
        axes.set_ylim(peak / 32e9, 1.3 * peak / 1e9)
        axes.xaxis.set_major_formatter(lambda value, _: f"{value:g}")
        axes.yaxis.set_major_formatter(lambda value, _: f"{value:g}")
        axes.set_xlabel("operations per byte of recurrent weights")
        axes.set_ylabel("GFLOP/s")
        axes.set_title(f"{threads} thread{'s' if threads > 1 else ''}; sloping: reading over and over so much per thread",
                       fontsize=9, loc="left")
        axes.legend(frameon=False, fontsize=7, loc="lower right")
    for suffix, metadata in ((".svg", {"Date": None}), (".png", None)):
        figure.savefig(str(output) + suffix, dpi=110, metadata=metadata)


def main():
    if len(sys.argv) < 4 or sys.argv[1] in ("-h", "--help"):
        sys.exit(__doc__)
    output, command = pathlib.Path(sys.argv[1]), sys.argv[2]
    races = [json.loads(pathlib.Path(file).read_text(encoding="utf-8")) for file in sys.argv[3:]]
    first = races[0]
    draw_roofline(races, output.with_name(output.name + "_roofline"))
    training = trains(first)
    title = "The race of CPU engines" + (": training" if training else "")
    columns = "Padded: the ratio with our layers on padded lengths" if training else (
        "bf16 weights: the ratio with our weights stored so")
    text = [f"# {title}\n\n{first['cpu']}, {first['cpus']} CPUs, {first['target']}; commit {first['commit']}; "
            f"{first['date'][:10]}; medians of {first['rounds']} interleaved rounds:\n\n    {command}\n",
            "; ".join(engine for engine in first["engines"].values()) + ".\n",
            f"Thousands of valid tokens per second{', forward and backward' if training else ''}; "
            f"[benchmarks.md](../benchmarks.md#{'training' if training else 'the-race-of-cpu-engines'}) says what the columns "
            f"are. Spread: slowest to fastest round. {columns}.\n\n![Speeds]({output.name}.svg)\n"]
    for race in races:
        text += [race_table(race, cell) + "\n" for cell in GATES if any(r["cell"] == cell for r in race["results"])]
    if training:
        text.append("## Memory\n\nMiB that one step adds at its peak beside weights and data, on "
                    f"{first['threads']} thread{'s' if first['threads'] > 1 else ''}.\n\n{memory_table(first)}\n")
    text.append(f"## Where the time goes\n\n![Roofline]({output.name}_roofline.svg)\n")
    for race in races:
        threads = race["threads"]
        text.append(f"**{threads} thread{'s' if threads > 1 else ''}**: {race['limits']['flops'] / 1e9:.0f} GFLOP/s in registers; "
                    f"reads per second in GB, all threads together, by what each of them goes over: {bandwidth_text(race)}.\n")
        text.append(roofline_table(race) + "\n")
    output.with_suffix(".md").write_text("\n".join(text), encoding="utf-8")
    for suffix in (".md", "_roofline.svg", "_roofline.png"):
        print(f"{output}{suffix}")


if __name__ == "__main__":
    main()
