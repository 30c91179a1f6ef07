#!/usr/bin/env python3
"""Makes the report of bench/gpu_report from what its parts left behind.

usage: gpu_report.py PARTS_FOLDER OUTPUT_FOLDER

PARTS_FOLDER has device.json of packrnn_bench and, for each part, NAME.log, NAME.status and
NAME.seconds; whatever is missing is reported as missing. Writes <gpu>.md and <gpu>.json, and
<gpu>.svg where there is matplotlib.
"""

import json
import pathlib
import re
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
PARTS = {
    "tests": "the tests on the GPU",
    "bench": "the benchmark",
    "memcheck": "compute-sanitizer memcheck, kernel tests",
    "racecheck": "compute-sanitizer racecheck, kernel tests",
}
STANDARD_PACKED = "STANDARD SEQ_MAJOR_PACKED"


def read(path, default=""):
    """Without names of folders of this machine, which say nothing to a reader."""
    try:
        text = path.read_text(encoding="utf-8", errors="replace").strip()
    except OSError:
        return default
    return re.sub(r" --json [^\s\"]+", "", text).replace(str(path.parent) + "/", "").replace(f"{ROOT}/", "")


def digits(value):
    """Three significant digits or more."""
    return "-" if value is None else f"{value:.{0 if value >= 100 else 1 if value >= 10 else 2}f}"


def table(head, rows, align=None):
    """Markdown; numbers to the right where `align` says r."""
    align = align or "l" * len(head)
    lines = [head, ["--:" if a == "r" else "---" for a in align], *rows]
    return "\n".join("| " + " | ".join(str(c).replace("|", "\\|").replace("\n", " ") for c in line) + " |"
                     for line in lines)


def microseconds(run, kind="warm"):
    return run[kind]["median_s"] * 1e6 if run and run.get(kind) else None


def usable(run):
    return bool(run.get("warm")) and not run["agreement"].startswith("WRONG")


def fastest(runs):
    runs = [run for run in runs if usable(run)]
    return min(runs, key=microseconds) if runs else None


def find(problem, who, what=""):
    return [run for run in problem["runs"] if run["who"] == who and run["what"].startswith(what)]


def ours(problem):
    runs = problem["runs"]
    return runs[0] if runs and runs[0].get("warm") else None


def ratio(a, b):
    a, b = microseconds(a), microseconds(b)
    return a / b if a and b else None


class Report:
    def __init__(self, parts):
        self.parts = parts
        text = read(parts / "device.json")
        self.device = json.loads(text) if text else {"problems": [], "notes": [
            "The benchmark left no results: see its part below."]}
        self.problems = self.device["problems"]

    def title(self):
        return self.device.get("device", "unknown GPU")

    def head(self):
        d = self.device
        rows = [("GPU", f"{self.title()}, {d.get('multiprocessors', '?')} multiprocessors"),
                ("driver", read(self.parts / "nvidia_smi.txt") or f"CUDA {d.get('driver', 0) // 1000}."
                 f"{d.get('driver', 0) % 1000 // 10}"),
                ("toolkit", d.get("toolkit", "?")), ("commit", d.get("commit", "?")),
                ("date", d.get("date", "?")), ("command", f"`bench/gpu_report` ({d.get('command', '?')})")]
        rows += list(d.get("peers", {}).items())
        lines = [f"# {self.title()}", ""]
        if d.get("simulated"):
            lines += ["**This is a simulated device: every time below is meaningless.** The report shows that "
                      "the report works.", ""]
        if not d.get("complete"):
            lines += ["**Not complete**: the benchmark was cut short, failed, or ran out of time.", ""]
        return "\n".join(lines + [table(("", ""), rows)])

    def statuses(self):
        result = {}
        for name, what in PARTS.items():
            status = read(self.parts / f"{name}.status", "did not run")
            words = {"0": "passed", "124": "stopped at its deadline", "130": "interrupted"}.get(
                status, f"FAILED with status {status}" if status.lstrip("-").isdigit() else status)
            log = read(self.parts / f"{name}.log").splitlines()
            found = [line.strip("= ") for line in log
                     if re.search(r"ERROR SUMMARY|RACECHECK SUMMARY|tests passed|test cases|WRONG|Out of time", line)]
            result[name] = {"what": what, "status": words, "seconds": read(self.parts / f"{name}.seconds"),
                            "says": found[-1] if found else (log[-1].strip() if log else "")}
        return result

    def checks(self):
        return "## Checks\n\n" + table(
            ("part", "result", "s", "it says"),
            [(p["what"], p["status"], p["seconds"], p["says"]) for p in self.statuses().values()], "llrl")

    def limits(self):
        text = "## Limits of this device, measured\n\n"
        constants = self.device.get("constants", {})
        if not constants:
            return text + "Not measured."
        return text + table(("what", "value"), [(k, f"{v:.4g}") for k, v in constants.items()], "lr")

    def targets(self):
        """What was aimed at, and what was reached."""
        rows = []
        gains = []
        for p in self.problems:
            standard = fastest(find(p, "cuDNN", STANDARD_PACKED))
            gain = ratio(standard, ours(p))
            if gain and not p["equal_lengths"]:
                gains.append((gain, p["name"]))
        if gains:
            gains.sort()
            rows.append(("packed forward at least 3x cuDNN standard packed, uneven lengths",
                         f"{gains[0][0]:.2f}x to {gains[-1][0]:.2f}x, median {gains[len(gains) // 2][0]:.2f}x; "
                         f"least for {gains[0][1]}", "yes" if gains[0][0] >= 3 else "no"))
        for p in self.problems:
            run = ours(p)
            if p["mix"] == "equal" and p["cell"] == "lstm" and p["dtype"] in ("f16", "bf16") and run:
                rows.append((f"{p['name']}: at most 1.5 us per step", f"{run['us_per_step']:.3f}",
                             "yes" if run["us_per_step"] <= 1.5 else "no"))
        over = sorted((run["warm"]["median_s"] / p["predicted_s"], p["name"]) for p in self.problems
                      if p["predicted_s"] and (run := ours(p)))
        if over:
            rows.append(("within 1.5x of the model", f"{over[0][0]:.2f}x to {over[-1][0]:.2f}x; most for "
                         f"{over[-1][1]}", "yes" if over[-1][0] <= 1.5 else "no"))
        return "## Targets\n\n" + (table(("target", "measured", "met"), rows) if rows else "Nothing to compare.")

    def summary(self):
        rows = []
        for p in self.problems:
            run = ours(p)
            if not run:
                rows.append((p["name"], p["steps"], *["-"] * 10))
                continue
            standard = fastest(find(p, "cuDNN", STANDARD_PACKED))
            cudnn = fastest(find(p, "cuDNN"))
            torch = fastest(find(p, "PyTorch", "packed"))
            step = fastest(find(p, "packrnn", "packed step"))
            padded = fastest(find(p, "packrnn", "padded"))
            rows.append((p["name"], p["steps"], digits(microseconds(run)), digits(microseconds(run, "cold")),
                         f"{run['us_per_step']:.3f}", digits(run["tokens_per_s"] / 1e6),
                         f"{100 * run['roofline_fraction']:.0f}%",
                         *(digits(ratio(other, run)) for other in (step, padded, standard, cudnn, torch))))
        return ("## Packed forward\n\nMedians; us warm and cold (caches emptied). From \"x step\" on: how many times "
                "as long the others took, warm: our step path, our padded run, cuDNN standard packed, the fastest "
                "of cuDNN in any algorithm and layout, PyTorch packed.\n\n" + table(
                    ("problem", "T", "us", "us cold", "us/step", "M tokens/s", "roofline", "x step", "x padded",
                     "x cuDNN packed", "x cuDNN best", "x PyTorch"), rows, "l" + "r" * 11))

    def cudnn(self):
        """Each combination once: what was accepted, and in whose words it was refused."""
        states = {}
        for p in self.problems:
            for run in find(p, "cuDNN"):
                key = (p["cell"], "equal" if p["equal_lengths"] else "uneven", p["mode"], *run["what"].split(" "))
                state = run["failure"] or ("runs" if usable(run) else run["agreement"] or "not measured")
                states.setdefault(key, {}).setdefault(state, []).append(p)
        rows = [(*key, "; ".join(
            state if len(found) == 1 else f"{state} (H {', '.join(sorted({str(p['hidden']) for p in where}, key=int))})"
            for state, where in found.items())) for key, found in sorted(states.items())]
        text = "## cuDNN: what it accepts\n\n"
        if not rows:
            return text + self.device.get("peers", {}).get("cuDNN", "Not asked.")
        return text + table(("cell", "lengths", "mode", "algorithm", "layout", "math", "status"),
                            [row if len(row) == 7 else (*row[:3], row[3], "", "", row[-1]) for row in rows])

    def model(self):
        rows = [(mode, fit["points"], f"{fit['per_call_s'] * 1e6:.2f}", f"{fit['per_step_s'] * 1e6:.4f}",
                 f"{100 * fit['median_error_before']:.0f}% ({100 * fit['max_error_before']:.0f}%)",
                 f"{100 * fit['median_error_after']:.0f}% ({100 * fit['max_error_after']:.0f}%)")
                for mode, fit in self.device.get("model", {}).items()]
        text = ("## Latency model\n\nFitted to the persistent runs: what has to be added to its constants `startup` and "
                "`pointwise`, and its error (median and largest) before and after.\n\n")
        if not rows:
            return text + "No persistent run to fit it to."
        return text + table(("mode", "runs", "us per call", "us per step", "error before", "error after"), rows,
                            "lrrrrr")

    def every_run(self):
        text = "## Every run\n\nus: median (least-most, count).\n"
        for p in self.problems:
            rows = []
            for run in p["runs"]:
                def times(kind):
                    s = run.get(kind)
                    return (f"{digits(s['median_s'] * 1e6)} ({digits(s['min_s'] * 1e6)}-{digits(s['max_s'] * 1e6)}, "
                            f"{s['count']})") if s else "-"
                rows.append((run["who"], run["what"], times("warm"), times("cold"),
                             run["failure"] or run["agreement"], run["explanation"]))
            text += (f"\n### {p['name']}\n\nI {p['input']}, T {p['steps']}, {p['tokens']} tokens; roofline "
                     f"{digits(p['bound_s'] * 1e6)} us ({p['limited_by']})\n\n" +
                     table(("", "", "warm us", "cold us", "agreement, or why not", "which ran"), rows, "llrrll") + "\n")
        return text.rstrip()

    def notes(self):
        return "## Notes\n\n" + ("\n".join(f"- {note}" for note in self.device.get("notes", [])) or "None.")

    def markdown(self):
        return "\n\n".join((self.head(), self.checks(), self.targets(), self.summary(), self.limits(), self.cudnn(),
                            self.model(), self.every_run(), self.notes())) + "\n"


def main():
    if len(sys.argv) != 3 or sys.argv[1] in ("-h", "--help"):
        sys.exit(__doc__)
    parts, output = pathlib.Path(sys.argv[1]), pathlib.Path(sys.argv[2])
    report = Report(parts)
    output.mkdir(parents=True, exist_ok=True)
    name = output / (re.sub(r"[^a-z0-9]+", "-", report.title().lower()).strip("-") or "unknown")
    markdown = report.markdown()
    name.with_suffix(".json").write_text(
        json.dumps(dict(report.device, checks=report.statuses()), indent=1) + "\n", encoding="utf-8")
    picture = name.with_suffix(".svg")
    for python in (sys.executable, "/usr/bin/python3"):
        drawn = subprocess.run([python, "-B", pathlib.Path(__file__).with_name("plot_device.py"),
                                name.with_suffix(".json"), picture], capture_output=True, text=True, check=False)
        if drawn.returncode == 0:
            markdown += f"\n![Times of all engines]({picture.name})\n"
            break
    else:
        print(f"No picture: {(drawn.stderr.strip().splitlines() or ['?'])[-1]}", file=sys.stderr)
    name.with_suffix(".md").write_text(markdown, encoding="utf-8")
    print(f"Report: {name.with_suffix('.md')}")


if __name__ == "__main__":
    main()
