#!/usr/bin/env python3
"""Checks that kernel sources keep to what both compilers of them understand.

usage: kernel_rules_test.py SOURCE_ROOT

The .cu and .cuh files of kernels/cuda are compiled by nvcc and, for the simt device, by the host's
compiler. What only one of them can do, or what the simt device cannot judge, stands in device.cuh
and launch.cuh and nowhere else. The script first plants a violation of every rule and must find it.
"""
import pathlib
import re
import sys

PRIMITIVES = {"device.cuh", "launch.cuh"}
RULES = [
    (r"\basm\b", "inline PTX belongs into device.cuh"),
    (r"<<<", "launches go through launch.cuh"),
    (r"__shared__", "use PACKRNN_SHARED or PACKRNN_DYNAMIC_SHARED"),
    (r"__constant__", "pass arguments by value: a symbol belongs to one device"),
    (r"\bvolatile\b", "poll through ld_relaxed or ld_acquire, which the race detector knows"),
    (r"\btexture\b|\bsurface\b", "no texture memory"),
    (r"cooperative_groups", "grid and cluster barriers are in device.cuh"),
    (r"cuda_(bf16|fp16)\.h", "storage types are in device.cuh"),
    (r"\bclock64\b|\bclock\(", "use now_ns()"),
    (r"\bprintf\b", "kernels report through the fault block"),
    (r"__CUDA_ARCH__|\bPACKRNN_SIMT\b", "only device.cuh may tell the compilers apart"),
    (r"\bcuda[A-Z]\w+\(", "the CUDA runtime is called in runtime/cuda only"),
    (r"__nanosleep", "use backoff()"),
    (r"__threadfence", "use acquire and release, which say what they order"),
    (r"atomicAdd\s*\(\s*\(?\s*(float|double)", "no floating-point atomics (contract C2)"),
]


def code_of(text):
    """The text with comments and string literals blanked, line by line."""
    text = re.sub(r"/\*.*?\*/", lambda m: re.sub(r"[^\n]", " ", m.group()), text, flags=re.S)
    text = re.sub(r'"(\\.|[^"\\\n])*"', lambda m: '""' if "cuda_" not in m.group() else m.group(), text)
    return re.sub(r"//[^\n]*", "", text)


def violations(name, text):
    for number, line in enumerate(code_of(text).splitlines(), 1):
        for pattern, why in RULES:
            if re.search(pattern, line):
                yield f"{name}:{number}: {line.strip()}  [{why}]"


def self_test():
    planted = ["asm volatile(x);", "k<<<1, 2>>>();", "__shared__ int a;", "__constant__ int b;",
               "volatile int* p;", "texture t;", "cooperative_groups::sync();", '#include "cuda_fp16.h"',
               "clock64();", 'printf("x");', "#if __CUDA_ARCH__ > 800", "cudaMalloc(&p, 1);",
               "__nanosleep(1);", "__threadfence();", "atomicAdd((float*)p, 1.0f);"]
    assert len(planted) == len(RULES)
    for line, (pattern, _) in zip(planted, RULES):
        assert any(re.search(pattern, code_of(line)) for _ in [0]), f"rule {pattern} misses {line}"
    assert not list(violations("x", "int a;  // asm, volatile\nconst char* s = \"printf\";\n"))


def main():
    self_test()
    folder = pathlib.Path(sys.argv[1]) / "kernels" / "cuda"
    files = sorted(p for p in folder.iterdir() if p.suffix in (".cu", ".cuh"))
    if not files:
        sys.exit(f"no kernel sources in {folder}")
    found = [v for p in files if p.name not in PRIMITIVES for v in violations(p.name, p.read_text())]
    print("\n".join(found) or f"{len(files)} kernel sources keep the rules")
    sys.exit(1 if found else 0)


if __name__ == "__main__":
    main()
