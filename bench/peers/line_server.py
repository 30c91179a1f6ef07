"""The engine's side of bench/race/peer.hpp: commands on standard input, one answer each.

  load FILE CELL    ready VARIANT...        parameters, x [T, N, I] and lengths [N] from a .safetensors file
  run VARIANT N     seconds WALL CPU        of N passes after an untimed one
  output VARIANT F  written                 float32, as raw bytes
  memory VARIANT    bytes PEAK              what a step of training adds to the resident memory at its peak
A pass is a forward, its output y [T, N, D*H]. Where the file has dy [T, N, D*H], zero in the padding, it is a
step of training: forward, and backward from dy. Its output is the gradient of x and then those of all
parameters, in the order of layers and directions: weight_ih, weight_hh, bias_ih, bias_hh.

An answer may also be "failed WHY". The first line, unasked, is "engine NAME" or "absent WHY".
"""

import ctypes
import os
import resource
import sys
import time


def cpu_seconds():
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime


def peak_of(run):
    """As peak_of() in bench/race/memory.hpp."""
    def status(name):
        with open("/proc/self/status", encoding="utf-8") as file:
            return next(int(line.split()[1]) * 1024 for line in file if line.startswith(name))

    ctypes.CDLL(None).malloc_trim(0)  # or a pass reuses freed memory that still counts as resident
    with open("/proc/self/clear_refs", "w", encoding="utf-8") as file:
        file.write("5")  # the high-water mark falls to what there is
    before = status("VmRSS:")
    run()
    return status("VmHWM:") - before


def one_line(error):
    return f"{type(error).__name__}: {error}".splitlines()[0]


def serve(start):
    """`start(threads)` gives the engine's name and load(file, cell) -> {variant: (run, output)}.

    A step of training has a third function, which frees the gradients.
    """
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what an engine prints is no answer

    def say(text):
        print(text, file=answers, flush=True)

    try:
        name, load = start(int(sys.argv[1]))
    except Exception as error:
        say(f"absent {one_line(error)}")
        return
    say(f"engine {name}")
    variants = {}
    for line in sys.stdin:
        command, *words = line.rstrip("\n").split("\t")
        try:
            if command == "load":
                variants.clear()
                variants.update(load(*words))
                say("\t".join(["ready", *variants]))
            elif command == "run":
                run, passes = variants[words[0]][0], int(words[1])
                run()
                cpu, wall = cpu_seconds(), time.perf_counter()
                for _ in range(passes):
                    run()
                say(f"seconds\t{time.perf_counter() - wall}\t{cpu_seconds() - cpu}")
            elif command == "output":
                with open(words[1], "wb") as file:
                    file.write(variants[words[0]][1]().tobytes())
                say("written")
            elif command == "memory":
                run, _, forget = variants[words[0]]
                forget()
                say(f"bytes\t{peak_of(run)}")
            else:
                say(f"failed there is no command {command}")
        except Exception as error:
            say(f"failed {one_line(error)}")
