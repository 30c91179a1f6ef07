#!/usr/bin/env python3
"""Plants one fault at a time in a scratch copy of the kernels and shows that tests notice each.

usage: planted_faults.py [--only NAME]... [--keep FOLDER] [--write docs/results/planted_faults.md]

Each fault is one replaced piece of text in kernels/cuda. The copy is built (without CUDA, and
optimised little, because compiling takes longer than running), the simt tests that the fault names
run under several schedules, and at least one must fail. The tests also run on the unchanged copy,
where all must pass. About ten seconds per fault on two cores, after a few minutes for the copy.
"""
import argparse
import dataclasses
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parents[2]
SEEDS = (1, 2, 3)


@dataclasses.dataclass
class Fault:
    name: str
    kind: str   # what a reader calls it: missing barrier, wrong bound ...
    file: str   # in kernels/cuda
    old: str    # must occur exactly once
    new: str
    tests: str  # Catch2 tags of simt_kernels_tests: the files that must notice


EXACT = "[#exact_recurrent_test],[#linear_test]"
BACK = "[#recurrent_backward_test]"
BACKWARD = "[#persistent_backward_test]"

FAULTS = [
    # The exact path.
    Fault("h gathered without a barrier", "missing barrier", "persistent_exact.cu",
          "      __syncthreads();\n\n      const F32x4* const w", "\n      const F32x4* const w", EXACT),
    Fault("h is not polled", "missing poll", "persistent_exact.cu",
          "Source::missing(value[i]) &&", "false && Source::missing(value[i]) &&", EXACT),
    Fault("only the first word of four is polled", "missing poll", "persistent_exact.cu",
          "return v.x == kNothing || v.y == kNothing || v.z == kNothing || v.w == kNothing;",
          "return v.x == kNothing;", EXACT),
    Fault("one buffer of h for two steps", "stale buffer", "persistent_exact.cu",
          "h_rows + turn * a.rows * pitch", "h_rows + 0 * a.rows * pitch", EXACT),
    Fault("mailbox not emptied", "stale buffer", "persistent_exact.cu",
          "  launch(context.stream(), PACKRNN_KERNEL(empty_mailbox_kernel), emptying, run);\n", "",
          EXACT),
    Fault("c is lost between ranges of steps", "stale buffer", "persistent_exact.cu",
          "else if (done == end - first - 1)", "else if (done == end - first)", EXACT),
    Fault("units and gates of weights swapped", "wrong index", "persistent_exact.cu",
          "u = row / kGates, g = row % kGates", "u = row % kGates, g = row / kGates", EXACT),
    Fault("vector load past the width of h", "wrong bound", "persistent_exact.cu",
          "if (vectors && count >= 4)", "if (vectors)", EXACT),
    Fault("too few fours of live rows", "wrong bound", "persistent_exact.cu",
          "lane / kUnits + kRowThreads - 1) / kRowThreads, 0)", "lane / kUnits) / kRowThreads, 0)",
          EXACT),
    Fault("rows that join have a state before", "wrong batch size", "chunk_step.cuh",
          "before = reverse ? later : step > 0 ? rows : 0;", "before = step > 0 ? rows : 0;", EXACT),
    Fault("batch size of the wrong step", "wrong batch size", "chunk_step.cuh",
          "const int later = alive(layout, step + 1, row, chunk);",
          "const int later = alive(layout, step, row, chunk);", EXACT),
    Fault("dealer's first barrier", "missing barrier", "mailbox.cuh",
          "    __syncthreads();  // start() is done", "    // start() is done", EXACT),
    Fault("dealer's last barrier", "missing barrier", "mailbox.cuh",
          "    __syncthreads();  // the answer is there\n", "", EXACT),
    Fault("a NaN is published as it is", "dropped mask", "mailbox.cuh",
          "return h == h ? __float_as_uint(h) : 0x7FFFFFFFU;", "return __float_as_uint(h);", EXACT),
    Fault("the watchdog never barks", "watchdog", "mailbox.cuh",
          "now - since > limit_ns", "now - since > limit_ns + 1000000000000ULL", EXACT),
    Fault("slab read without a barrier", "missing barrier", "chain.cuh",
          "    __syncthreads();\n    if (k + kSlab", "    if (k + kSlab", EXACT),
    Fault("one slab for two turns", "stale buffer", "chain.cuh", "k += kSlab, turn ^= 1)", "k += kSlab)",
          EXACT),
    Fault("padding of +0", "dropped mask", "chain.cuh", "x_next[n] = A(-0.0);", "x_next[n] = A(0);", EXACT),
    Fault("x read past K", "wrong bound", "chain.cuh", "if (k + x_k < k_count)",
          "if (k + x_k < k_count + kSlab)", EXACT),
    Fault("last step of a row", "wrong batch size", "step.cu", "const bool last = row >= s.after;",
          "const bool last = row > s.after;", EXACT),
    Fault("c of a row that begins", "stale buffer", "step.cu",
          "if (row < s.before)\n          c =", "if (row <= s.before)\n          c =", EXACT),
    Fault("an empty sequence is forgotten", "wrong bound", "step.cu", "int row = live + ",
          "int row = live + 1 + ", EXACT),
    Fault("a column too many", "wrong bound", "linear.cu", "if (row < p.rows && column < p.outputs)",
          "if (row < p.rows && column <= p.outputs)", EXACT),
    Fault("pack reads the step before", "wrong index", "pack.cu",
          "return {From::memory, element(source, n, t), to};\n  }\n};\n\nstruct UnpackMap",
          "return {From::memory, element(source, n, t > 0 ? t - 1 : t), to};\n  }\n};\n\nstruct UnpackMap",
          "[#pack_test]"),
    Fault("a step of padding taken for data", "wrong bound", "pack.cu",
          "if (cell.step >= layout.lengths[k]) return", "if (cell.step > layout.lengths[k]) return", "[#pack_test]"),
    Fault("an index past the last row is accepted", "wrong bound", "pack.cu",
          "if (index >= 0 && index < rows)", "if (index >= 0 && index <= rows)", "[#pack_test]"),
    Fault("rows copied up to the last whole team", "wrong bound", "pack.cu",
          "for (; v < vectors; v += team) to[v] = from[v];",
          "for (; v + team < vectors; v += team) to[v] = from[v];", "[#pack_test]"),
    Fault("a maximum loses NaN", "dropped case", "reduce.cu",
          "return value > most || value != value ? value : most;", "return value > most ? value : most;",
          "[#reduce_test]"),
    Fault("dropout masks follow the place in the batch", "dropped mask", "dropout.cu",
          "layout.sequence_ids[layout.sorted_indices[row - layout.offsets[t]]]", "row - layout.offsets[t]",
          "[#dropout_test]"),
    Fault("sums of a scan's warps read too early", "missing barrier", "layout.cu",
          "if (lane == kWarp - 1) sums[warp] = value;\n  __syncthreads();",
          "if (lane == kWarp - 1) sums[warp] = value;", "[#layout_test]"),
    Fault("batch sizes count lengths equal to the step", "wrong batch size", "layout.cu",
          "if (lengths[middle] > t)", "if (lengths[middle] >= t)", "[#layout_test]"),
    Fault("words of a weight fragment exchanged", "wrong fragment index", "fragments.cuh",
          "Product::multiply(sum[0], U32x4{a.x, b.x, a.y, b.y}, s.x, s.y);",
          "Product::multiply(sum[0], U32x4{a.x, a.y, b.x, b.y}, s.x, s.y);", "[#persistent_test]"),
    Fault("a column of a tile stored twice", "wrong fragment index", "persistent.cuh",
          "column[V::kPitch + 8] = sum[0][3] + sum[1][3];", "column[V::kPitch + 8] = sum[0][2] + sum[1][2];",
          "[#persistent_test]"),
    Fault("sums of the warps added too early", "missing barrier", "persistent_kernel.cuh",
          "they are here too.\n        __syncthreads();", "they are here too.", "[#persistent_test]"),
    Fault("one buffer of sums", "stale buffer", "persistent_kernel.cuh", "buffer ^= 1;", "", "[#persistent_test]"),
    Fault("h taken as it is found", "missing poll", "fragments.cuh",
          "missing |= v.x == kNothing || v.y == kNothing || v.z == kNothing || v.w == kNothing;",
          "missing |= false;", "[#persistent_test]"),
    Fault("a cluster starts its next chunk at once", "missing barrier", "cluster_kernel.cuh",
          "    cluster_sync();  // all are done", "    // all are done", "[#cluster_test]"),
    Fault("one buffer of h in a cluster", "stale buffer", "cluster_kernel.cuh",
          "first, chunk_rows), turn ^= 1)", "first, chunk_rows))", "[#cluster_test]"),
    Fault("a GRU reads a pair of h before its other lane stored it", "missing barrier", "persistent_kernel.cuh",
          "if constexpr (V::kCell == Cell::gru && Product::kBytes == 2) __syncwarp();", "", "[#persistent_test]"),
    Fault("sums of a cluster's warps added too early", "missing barrier", "cluster_kernel.cuh",
          "        __syncthreads();\n        sum_buffer ^= 1;", "        sum_buffer ^= 1;", "[#cluster_test]"),
    Fault("a cluster waits for the phase before", "missing poll", "cluster_kernel.cuh",
          "          parities ^= 1U << turn;\n", "", "[#cluster_test]"),
    Fault("a cluster expects the h of a row less", "wrong batch size", "cluster_kernel.cuh",
          "static_cast<std::uint32_t>(kept * run.units", "static_cast<std::uint32_t>((kept - 1) * run.units",
          "[#cluster_test]"),
    Fault("halves of a parcel exchanged", "wrong fragment index", "cluster_kernel.cuh",
          "__shfl_sync(kAll, pair, 4, kLanes)", "__shfl_sync(kAll, pair, 5, kLanes)", "[#cluster_test]"),
    Fault("a row that joins a range takes its h from another", "wrong batch size", "tensor_step.cu",
          "p.reverse ? length > p.last_step :", "p.reverse ? length >= p.last_step :", "[#tensor_step_test]"),
    Fault("a sequence that ends with its range", "wrong bound", "tensor_step.cu",
          "p.first_step == 0 : length <= p.last_step", "p.first_step == 0 : length < p.last_step",
          "[#tensor_step_test]"),
    Fault("tf32x3 loses its small products", "dropped case", "tensor_step.cu",
          "      product.accumulate = true;\n", "", "[#tensor_step_test]"),
    Fault("W_hz in the place of W_hn", "wrong index", "tensor_step.cu",
          "w_hn.high += 2 * w_hh_.pitch;", "w_hn.high += w_hh_.pitch;", "[#tensor_step_test]"),
    # The way back.
    Fault("a row that ends takes the gates of another", "wrong batch size", "step_backward.cu",
          "row < s.after ? dgates(y_after + row) : nullptr", "dgates(y_after + row)", BACK),
    Fault("dh_0 by the wrong step of a reversed row", "wrong index", "step_backward.cu",
          "const int first = d.reverse ? a.run.layout.lengths[row] - 1 : 0;", "const int first = 0;",
          BACK),
    Fault("units that fill up keep what was there", "uninitialised memory", "step_backward.cu",
          "if (a.phase == Phase::cell && unit < panels.units) back.fill(row, unit);", "", BACK),
    Fault("h before a row that joins", "wrong batch size", "recurrent_gates.cu",
          "row < layout.batch_sizes[earlier])", "row <= layout.batch_sizes[earlier])", BACK),
    Fault("gates of transposed weights rotated", "wrong index", "pack_panels.cu",
          "(part + 2) % 3 : part", "(part + 1) % 3 : part", BACK),
    Fault("a vector of four moved twice", "wrong index", "pack.cu",
          "to[v + 2 * team] = third;", "to[v + 2 * team] = second;", "[#pack_test]"),
    Fault("the first row of a step counted to the step before", "wrong bound", "rows.cuh",
          "if (layout.offsets[middle] <= row)", "if (layout.offsets[middle] < row)", "[#pack_test]"),
    Fault("equal lengths out of order", "wrong index", "layout.cu",
          "others[j] == length && j < before", "others[j] == length && j > before", "[#layout_test]"),
    Fault("lengths replaced while others count them", "missing barrier", "layout.cu",
          "    __syncthreads();  // before the next stretch takes the place of this one\n", "", "[#layout_test]"),
    Fault("a scan begins before its sums were read", "missing barrier", "layout.cu",
          "counters[i] = before + sum - value;\n    before += sums[kTableThreads / kWarp - 1];\n    __syncthreads();",
          "counters[i] = before + sum - value;\n    before += sums[kTableThreads / kWarp - 1];", "[#layout_test]"),
    Fault("every digit sorted from the first order", "stale buffer", "layout.cu",
          "    std::swap(from, to);\n", "", "[#layout_test]"),
    Fault("the last elements converted as a whole vector", "wrong bound", "elementwise.cu",
          "if (aligned && i + kEach <= count)", "if (aligned)", "[#elementwise_test]"),
    # The way back through the recurrence on tensor cores.
    Fault("dgates taken as they are found", "missing poll", "polling.cuh",
          "missing |= incomplete(state[chunk]);", "missing |= false;", BACKWARD),
    Fault("only the first word of four is waited for", "missing poll", "fragments.cuh",
          "missing |= v.x == kNothing || v.y == kNothing || v.z == kNothing || v.w == kNothing;",
          "missing |= v.x == kNothing;", BACKWARD),
    Fault("dgates are not emptied", "stale buffer", "persistent_backward.cu",
          "U32x4{kNothing, kNothing, kNothing, kNothing}", "U32x4{0, 0, 0, 0}", BACKWARD),
    Fault("sums of the warps added too early on the way back", "missing barrier",
          "persistent_backward_kernel.cuh", "they are here too.\n        __syncthreads();", "they are here too.",
          BACKWARD),
    Fault("one buffer of sums on the way back", "stale buffer", "persistent_backward_kernel.cuh", "buffer ^= 1;", "",
          BACKWARD),
    Fault("the way back walks in the forward's order", "wrong index", "persistent_backward_kernel.cuh",
          "ChunkWalk walk(run, !direction.reverse, first", "ChunkWalk walk(run, direction.reverse, first", BACKWARD),
    Fault("c before the step is that of the step after", "wrong index", "persistent_backward_kernel.cuh",
          "before = cells[earlier * run.hidden + unit];", "before = cells[at];", BACKWARD),
    Fault("a row that joins keeps the dc of another", "stale buffer", "persistent_backward_kernel.cuh",
          "            carry = 0;\n", "", BACKWARD),
    Fault("rows that leave are multiplied no more", "wrong batch size", "persistent_backward_kernel.cuh",
          "max(rows, waiting) : rows", "rows : rows", BACKWARD),
    Fault("a pair of dgates in the wrong order", "wrong index", "persistent_backward_kernel.cuh",
          "else if (unit % 2 == 0)", "else if (unit % 2 == 1)", BACKWARD),
    Fault("what goes past a GRU's products is lost", "dropped case", "persistent_backward_kernel.cuh",
          "          if (run.cell == Cell::gru) dh += carry;\n", "", BACKWARD),
    # The way back, beside recurrent layers.
    Fault("a slab of a gradient read without a barrier", "missing barrier", "gradient_product.cu",
          "    __syncthreads();\n    if (row + Tile::kSlab", "    if (row + Tile::kSlab", "[#gradient_product_test]"),
    Fault("every part begins with the first slab", "wrong index", "gradient_product.cu",
          "  fetch(begin);\n", "  fetch(0);\n", "[#gradient_product_test]"),
    Fault("the last parts are not added", "wrong bound", "gradient_product.cu",
          "    for (; part < count; ++part) sum += parts[part * size + i];\n", "", "[#gradient_product_test]"),
    Fault("warps' column sums added too early", "missing barrier", "gradient_product.cu",
          "  __syncthreads();  // all warps' sums are there\n", "", "[#gradient_product_test]"),
    Fault("places given before all are counted", "missing barrier", "scatter.cu",
          "    __syncthreads();  // what each warp has of each digit\n", "", "[#scatter_test]"),
    Fault("counters zeroed while places are read", "missing barrier", "scatter.cu",
          "    __syncthreads();  // all have read theirs\n", "", "[#scatter_test]"),
    Fault("a lane counts itself", "wrong index", "scatter.cu",
          "__popc(same & ((1U << lane) - 1))", "__popc(same & ((2U << lane) - 1)) - (lane & 1)", "[#scatter_test]"),
    Fault("two parts in one place", "stale buffer", "scatter.cu", "(i == begin ? 0 : 1)", "0", "[#scatter_test]"),
    Fault("the last part of an index is left out", "wrong bound", "scatter.cu",
          "for (std::int64_t j = i; goes_on(j); j += kScatterPart)",
          "for (std::int64_t j = i; goes_on(j + kScatterPart); j += kScatterPart)", "[#scatter_test]"),
    Fault("gradients of a norm's weight added too early", "missing barrier", "layer_norm.cu",
          "  __syncthreads();  // all warps' sums are there\n", "", "[#layer_norm_test]"),
    Fault("half of a row's lanes summed", "wrong index", "layer_norm.cu", "int lanes = 16; lanes > 0",
          "int lanes = 16; lanes > 1", "[#layer_norm_test]"),
    Fault("a maximum's gradient goes to the last of equals", "wrong index", "reduce.cu",
          "if (value <= most) continue;", "if (value < most) continue;", "[#reduce_test]"),
    Fault("a last element taken for the first", "wrong index", "pack.cu",
          "if (t != (last ? layout.lengths[k] - 1 : 0))", "if (t != 0)", "[#pack_test]"),
    Fault("the gradient of relu at 0", "dropped case", "activation.cu", "return y <= A(0) ? A(0) : dy;",
          "return y < A(0) ? A(0) : dy;", "[#activation_test]"),
    Fault("panels of the transpose with the rows of the weight", "wrong index", "linear.cu",
          "transposed ? 1 : k, step", "k, step", "[#linear_test]"),
    # Layers at the same time: an event that is missing between two streams.
    Fault("a layer does not wait for the one below", "missing event", "wavefront.cpp",
          "if (l > 0) line.lane.wait_for(lines[l - 1].lane);", "", "[#stack_test]"),
    Fault("lanes start before their context is there", "missing event", "wavefront.cpp",
          "    lane.wait_for(context);\n", "", "[#stack_test]"),
    Fault("a context goes on without its lanes", "missing event", "wavefront.cpp",
          "for (std::size_t l = 0; l < lanes; ++l) context_.wait_for(context_.lane(l));", "", "[#stack_test]"),
]


def run(command, **options):
    return subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, **options)


def build(folder):
    result = run(["ninja", "-C", str(folder / "build"), "simt_kernels_tests"])
    if result.returncode:
        sys.exit(result.stdout[-4000:])


def first_failure(folder, tests):
    """What the first failing run printed, or None."""
    for seed in SEEDS:
        environment = dict(os.environ, PACKRNN_DEVICE="cuda", PACKRNN_SIMT_SEED=str(seed))
        command = [str(folder / "build/tests/kernels/simt_kernels_tests"), "--filenames-as-tags", tests,
                   "--abort"]
        try:
            result = run(command, env=environment, timeout=300)
        except subprocess.TimeoutExpired:
            return f"seed {seed}: no end within 300 s"
        if result.returncode not in (0, 77):
            return f"seed {seed}: " + how(result.stdout)
    return None


def how(output):
    """One line that says how a run failed."""
    for line in output.splitlines():
        text = line.strip()
        if any(w in text for w in ("divergent barrier", "deadlock", "livelock", "DeviceError", "simt:",
                                   "out of bounds", "watchdog")):
            return text[:150]
    for line in output.splitlines():
        if "FAILED" in line or "SIG" in line:
            return "wrong results"
    return "failed"


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", action="append", help="the fault of this name; may be repeated")
    parser.add_argument("--keep", type=pathlib.Path, help="work here and leave it, for faster repeats")
    parser.add_argument("--write", type=pathlib.Path, help="write the table as Markdown")
    arguments = parser.parse_args()
    faults = [f for f in FAULTS if arguments.only is None or f.name in arguments.only]
    for fault in faults:
        count = (ROOT / "kernels/cuda" / fault.file).read_text().count(fault.old)
        if count != 1:
            sys.exit(f"{fault.name}: its text occurs {count} times in {fault.file}, expected once")

    folder = arguments.keep or pathlib.Path(tempfile.mkdtemp(prefix="planted_faults."))
    files = run(["git", "ls-files", "--cached", "--others", "--exclude-standard"], cwd=ROOT).stdout.split()
    for file in files:
        target = folder / file
        target.parent.mkdir(parents=True, exist_ok=True)
        if not target.exists() or target.read_bytes() != (ROOT / file).read_bytes():
            shutil.copy2(ROOT / file, target)
    configure = ["cmake", "-S", str(folder), "-B", str(folder / "build"), "-G", "Ninja", "-DPACKRNN_CUDA=OFF",
                 "-DPACKRNN_BENCH=OFF", "-DPACKRNN_EXAMPLES=OFF", "-DPACKRNN_INSTALL=OFF",
                 "-DCMAKE_CXX_FLAGS_RELEASE=-O1"]
    if shutil.which("ccache"):  # what a fault changed is compiled once again afterwards
        configure.append("-DCMAKE_CXX_COMPILER_LAUNCHER=ccache")
    run(configure, check=True)
    build(folder)
    for tests in sorted({f.tests for f in faults}):
        if failure := first_failure(folder, tests):
            sys.exit(f"{tests} fails without any fault: {failure}")
    print(f"{len(faults)} faults; without one, all tests pass", flush=True)

    rows, unnoticed = [], []
    for fault in faults:
        path = folder / "kernels/cuda" / fault.file
        original = path.read_text()
        path.write_text(original.replace(fault.old, fault.new))
        try:
            build(folder)
            failure = first_failure(folder, fault.tests)
        finally:
            path.write_text(original)
        print(f"{fault.name}: {failure or 'NOT NOTICED'}", flush=True)
        if not failure:
            unnoticed.append(fault.name)
        rows.append(f"| {fault.name} | {fault.kind} | {fault.file} | {failure or '**not noticed**'} |")
    if not arguments.keep:
        shutil.rmtree(folder)
    if arguments.write:
        arguments.write.write_text(
            "# Faults planted in the kernels, and what noticed them\n\n"
            "Written by `tests/simt/planted_faults.py --write docs/results/planted_faults.md`: one fault at a\n"
            "time in a copy of the kernels, then the simt tests. The last column is the first complaint.\n\n"
            "| fault | kind | file | noticed as |\n|---|---|---|---|\n" + "\n".join(rows) + "\n")
    print(f"{len(faults) - len(unnoticed)} of {len(faults)} faults noticed")
    sys.exit(1 if unnoticed else 0)


if __name__ == "__main__":
    main()
