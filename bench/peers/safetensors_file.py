"""Reads the .safetensors files that the benchmarks hand to engines in Python."""

import json
import struct

import numpy

KINDS = {"F32": numpy.float32, "I64": numpy.int64}


def read_safetensors(path):
    """Name -> numpy array."""
    with open(path, "rb") as file:
        data = file.read()
    (size,) = struct.unpack("<Q", data[:8])
    arrays = {}
    for name, entry in json.loads(data[8:8 + size]).items():
        if name == "__metadata__":
            continue
        begin, end = (8 + size + offset for offset in entry["data_offsets"])
        values = numpy.frombuffer(bytearray(data[begin:end]), dtype=KINDS[entry["dtype"]])
        arrays[name] = values.reshape(entry["shape"])
    return arrays
