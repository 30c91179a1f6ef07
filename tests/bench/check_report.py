#!/usr/bin/env python3
"""Looks at the reports that simt_report made: check_report.py FOLDER [with-cudnn]"""

import json
import pathlib
import sys

SECTIONS = ("Checks", "Targets", "Packed forward", "Limits of this device, measured",
            "cuDNN: what it accepts", "Latency model", "Every run", "Notes")


def expect(condition, message):
    if not condition:
        sys.exit(f"check_report: {message}")


def load(folder):
    markdown, data = list(folder.glob("*.md")), list(folder.glob("*.json"))
    expect(len(markdown) == 1 and len(data) == 1, f"{folder}: {markdown}, {data}")
    text = markdown[0].read_text(encoding="utf-8")
    for section in SECTIONS:
        expect(f"\n## {section}\n" in text, f"{markdown[0].name} has no section {section}")
    return text, json.loads(data[0].read_text(encoding="utf-8"))


def check_whole(folder, with_cudnn):
    text, data = load(folder)
    expect(data["complete"] and data["simulated"], "the report is not complete, or not simulated")
    expect("simulated device" in text, "the report does not say that it is simulated")
    expect("FAILED" not in text and "WRONG" not in text, "something failed, or is wrong:\n" + text)
    problems = data["problems"]
    modes = {problem["mode"] for problem in problems}
    expect(modes == {"f32 exact", "f32 tf32", "bf16", "f16"}, f"modes: {modes}")
    expect({problem["cell"] for problem in problems} == {"lstm", "gru"}, "cells")
    expect({problem["equal_lengths"] for problem in problems} == {True, False}, "lengths")
    for problem in problems:
        runs = {run["what"]: run for run in problem["runs"] if run["who"] == "packrnn"}
        expect(list(runs) == ["packed auto", "packed step", "padded auto", "pack input, pad output"],
               f"{problem['name']}: {list(runs)}")
        for what, run in runs.items():
            where = f"{problem['name']}, {what}"
            expect(not run["failure"], f"{where}: {run['failure']}")
            expect(run["warm"]["count"] == 1 and run["cold"]["count"] == 1, f"{where}: not timed")
            expect(run["agreement"], f"{where}: not compared")
        expect(runs["packed auto"]["explanation"], f"{problem['name']}: no explanation")
        if with_cudnn:
            check_cudnn(problem)
    expect(data["constants"]["mailbox_s"] > 0, "nothing was calibrated")
    expect(set(data["peers"]) == {"cuDNN", "PyTorch"} and all(data["peers"].values()), "peers")
    checks = data["checks"]
    expect(set(checks) == {"tests", "bench", "memcheck", "racecheck"}, "checks")
    for name, check in checks.items():
        expect(check["status"] == "passed", f"{name}: {check}")
    expect("ERROR SUMMARY: 0 errors" in text, "the sanitizer's verdict")


def check_cudnn(problem):
    runs = [run for run in problem["runs"] if run["who"] == "cuDNN"]
    expect(len(runs) in (9, 12, 18, 24), f"{problem['name']}: {len(runs)} combinations of cuDNN")
    for run in runs:
        where = f"{problem['name']}, cuDNN {run['what']}"
        if run["failure"]:
            expect("CUDNN_STATUS_" in run["failure"] and "fake" in run["failure"], f"{where}: {run['failure']}")
        else:
            expect(run["agreement"] and run["warm"]["count"] == 1, where)
    ran = {run["what"] for run in runs if not run["failure"]}
    expect(bool(ran) == (problem["dtype"] == "f32"), f"{problem['name']}: {ran}")


def main():
    folder = pathlib.Path(sys.argv[1])
    check_whole(folder / "whole", "with-cudnn" in sys.argv[2:])
    text, data = load(folder / "hasty")
    expect("no time left" in text and not data["problems"], "the report in no time")
    load(folder / "stopped")
    text, data = load(folder / "broken")
    expect("FAILED with status 2" in text and data["checks"]["tests"]["status"] == "passed", "the broken report")


if __name__ == "__main__":
    main()
