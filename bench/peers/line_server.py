"""The engine's side of bench/race/peer.hpp: commands on standard input, one answer each.

  load FILE CELL    ready VARIANT...        parameters, x [T, N, I] and lengths [N] from a .safetensors file
  run VARIANT N     seconds WALL CPU        of N forward passes after an untimed one
  output VARIANT F  written                 y [T, N, D*H], float32, as raw bytes
An answer may also be "failed WHY". The first line, unasked, is "engine NAME" or "absent WHY".
"""

import os
import resource
import sys
import time


def cpu_seconds():
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime


def one_line(error):
    return f"{type(error).__name__}: {error}".splitlines()[0]


def serve(start):
    """`start(threads)` gives the engine's name and load(file, cell) -> {variant: (run, output)}."""
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
            else:
                say(f"failed there is no command {command}")
        except Exception as error:
            say(f"failed {one_line(error)}")
