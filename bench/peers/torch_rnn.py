#!/usr/bin/env python3
"""Times PyTorch's LSTM, GRU and RNN on the problems that packrnn_bench measured.

usage: torch_rnn.py REQUEST.json

The request has device ("cuda:0" or "cpu"), seconds (for all), flush_bytes, cases (cell, input, hidden,
lengths, dtype, math) and checks (safetensors files with the parameters, input and output of a small
layer of ours). The answer is one JSON object on stdout: the version, or "absent" with the reason; for
each case the seconds of each repetition of a packed and a padded forward, cold and warm, or why there
are none; and how far PyTorch's output is from ours.
"""

import json
import struct
import sys
import time


def read_safetensors(torch, path):
    kinds = {"F32": torch.float32, "I64": torch.int64}
    with open(path, "rb") as file:
        data = file.read()
    (size,) = struct.unpack("<Q", data[:8])
    tensors = {}
    for name, entry in json.loads(data[8:8 + size]).items():
        if name == "__metadata__":
            continue
        begin, end = (8 + size + offset for offset in entry["data_offsets"])
        values = torch.frombuffer(bytearray(data[begin:end]), dtype=kinds[entry["dtype"]])
        tensors[name] = values.reshape(entry["shape"])
    return tensors


def set_math(torch, tf32):
    torch.backends.cudnn.allow_tf32 = tf32
    torch.backends.cuda.matmul.allow_tf32 = tf32


def make_layer(torch, cell, width, hidden):
    kind = {"lstm": torch.nn.LSTM, "gru": torch.nn.GRU, "rnn": torch.nn.RNN}[cell]
    return kind(width, hidden).eval()


def check(torch, device, request):
    """The largest difference from our output at valid positions."""
    set_math(torch, False)
    tensors = read_safetensors(torch, request["file"])
    x, y, lengths = tensors.pop("x"), tensors.pop("y"), tensors.pop("lengths")
    layer = make_layer(torch, request["cell"], x.shape[2], y.shape[2])
    layer.load_state_dict(tensors)
    layer.to(device)
    packed = torch.nn.utils.rnn.pack_padded_sequence(x.to(device), lengths, enforce_sorted=False)
    output, _ = torch.nn.utils.rnn.pad_packed_sequence(layer(packed)[0])
    largest = 0.0
    for n, length in enumerate(lengths.tolist()):
        difference = (output[:length, n].cpu() - y[:length, n]).abs().max().item()
        if not difference <= largest:  # NaN is the largest of all
            largest = difference
    return {"cell": request["cell"], "largest": largest}


class Timer:
    """Seconds of one run, by events on a GPU and by the clock elsewhere."""

    def __init__(self, torch, device, flush_bytes):
        self.torch, self.cuda = torch, device.startswith("cuda")
        self.flush = torch.empty(max(1, flush_bytes // 4), device=device) if self.cuda else None

    def cold_and_warm(self, run):
        """Both are put on the stream before anything waits, as packrnn_bench does with its own."""
        if not self.cuda:
            seconds = []
            for _ in range(2):
                start = time.perf_counter()
                run()
                seconds.append(time.perf_counter() - start)
            return seconds
        events = [self.torch.cuda.Event(enable_timing=True) for _ in range(4)]
        self.flush.zero_()
        for begin, end in (events[:2], events[2:]):
            begin.record()
            run()
            end.record()
        self.torch.cuda.synchronize()
        return [events[i].elapsed_time(events[i + 1]) * 1e-3 for i in (0, 2)]


def measure(torch, device, timer, case, seconds):
    """One row each for packed and padded."""
    dtype = {"f32": torch.float32, "f64": torch.float64, "f16": torch.float16,
             "bf16": torch.bfloat16}[case["dtype"]]
    set_math(torch, case["math"] == "tf32")
    lengths = torch.tensor(case["lengths"], dtype=torch.int64)
    layer = make_layer(torch, case["cell"], case["input"], case["hidden"]).to(device, dtype)
    shape = (int(lengths.max()), len(lengths), case["input"])
    x = (torch.rand(shape, device=device) * 2 - 1).to(dtype)
    rows = [{"what": what, "failure": "", "cold_s": [], "warm_s": []} for what in ("packed", "padded")]
    runs = []
    for row in rows:
        try:
            data = x
            if row["what"] == "packed":
                data = torch.nn.utils.rnn.pack_padded_sequence(x, lengths, enforce_sorted=False)
            layer(data)
            runs.append(data)
        except Exception as error:  # what PyTorch refuses is part of the result
            row["failure"] = f"{type(error).__name__}: {error}".splitlines()[0]
            runs.append(None)
    start, repetitions = time.perf_counter(), 0
    while any(run is not None for run in runs) and repetitions < 200:
        if repetitions >= 3 and time.perf_counter() - start > seconds:
            break
        for row, data in zip(rows, runs):
            if data is None:
                continue
            cold, warm = timer.cold_and_warm(lambda: layer(data))
            row["cold_s"].append(cold)
            row["warm_s"].append(warm)
        repetitions += 1
    return rows


def answer(request):
    try:
        import torch
    except Exception as error:
        return {"absent": str(error)}
    device = request["device"]
    if device.startswith("cuda") and not torch.cuda.is_available():
        return {"absent": f"version {torch.__version__} finds no CUDA device"}
    result = {"version": f"PyTorch {torch.__version__}", "rows": [], "checks": []}
    try:
        with torch.no_grad():
            timer = Timer(torch, device, request["flush_bytes"])
            for item in request["checks"]:
                result["checks"].append(check(torch, device, item))
            start = time.perf_counter()
            for index, case in enumerate(request["cases"]):
                left = request["seconds"] - (time.perf_counter() - start)
                if left <= 0:
                    rows = [{"what": what, "failure": "no time left", "cold_s": [], "warm_s": []}
                            for what in ("packed", "padded")]
                else:
                    share = left / (len(request["cases"]) - index)
                    try:
                        rows = measure(torch, device, timer, case, share)
                    except Exception as error:
                        rows = [{"what": "packed", "cold_s": [], "warm_s": [],
                                 "failure": f"{type(error).__name__}: {error}".splitlines()[0]}]
                result["rows"] += [dict(row, case=index) for row in rows]
    except KeyboardInterrupt:
        pass  # what there is so far is the answer
    return result


def without_nan(value):
    if isinstance(value, dict):
        return {key: without_nan(item) for key, item in value.items()}
    if isinstance(value, list):
        return [without_nan(item) for item in value]
    return None if isinstance(value, float) and value != value else value


def main():
    if len(sys.argv) != 2 or sys.argv[1] in ("-h", "--help"):
        sys.exit(__doc__)
    with open(sys.argv[1], encoding="utf-8") as file:
        request = json.load(file)
    # JSON has no NaN: the reader takes null for it.
    json.dump(without_nan(answer(request)), sys.stdout)


if __name__ == "__main__":
    main()
