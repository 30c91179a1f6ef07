#!/usr/bin/env python3
"""Writes the seeds in tests/fuzz/corpus/ again: small files from which the fuzzer starts.

python.safetensors is only written when the Python packages safetensors and numpy are there; a test
reads it, to see that files of the original implementation are understood.
"""
import json
import pathlib
import struct

FOLDER = pathlib.Path(__file__).parent / "corpus" / "safetensors"


def write(name: str, header: object, data: bytes, length: int | None = None) -> None:
    text = header if isinstance(header, bytes) else json.dumps(header, separators=(",", ":")).encode()
    size = len(text) if length is None else length
    (FOLDER / f"{name}.safetensors").write_bytes(struct.pack("<Q", size) + text + data)


def tensor(dtype: str, shape: list[int], begin: int, end: int) -> dict[str, object]:
    return {"dtype": dtype, "shape": shape, "data_offsets": [begin, end]}


def main() -> None:
    FOLDER.mkdir(parents=True, exist_ok=True)
    write("none", {}, b"")
    write("one", {"a": tensor("F32", [2], 0, 8)}, struct.pack("<2f", 1.0, -2.0))
    write("scalar", {"a": tensor("I64", [], 0, 8)}, bytes(8))
    write("unaligned", b'{"a":{"dtype":"F64","shape":[1],"data_offsets":[0,8]}}  ' + b" ", bytes(8))
    dtypes = {"F64": 8, "I64": 8, "F32": 4, "I32": 4, "F16": 2, "BF16": 2, "U8": 1, "BOOL": 1, "F8_E4M3": 1}
    header: dict[str, object] = {"__metadata__": {"format": "pt", "\u00e9": ""}}
    position = 0
    for dtype, size in dtypes.items():
        header[f"model.{dtype}"] = tensor(dtype, [1, 2], position, position + 2 * size)
        position += 2 * size
    header["none"] = tensor("F16", [0, 3], position, position)
    write("dtypes", header, bytes(range(position)))
    write("overlap", {"a": tensor("F32", [1], 0, 4), "b": tensor("F32", [1], 0, 4)}, bytes(4))
    write("twice", b'{"a":{"dtype":"U8","shape":[0],"data_offsets":[0,0]},"a":{}}', b"")
    write("length", {}, b"", length=2**64 - 1)
    try:
        import numpy as np
        from safetensors.numpy import save_file
    except ImportError:
        print("python.safetensors left as it is: needs the packages safetensors and numpy")
        return
    save_file(
        {
            "lstm.weight_ih_l0": np.arange(6, dtype=np.float32).reshape(2, 3) * 0.5,
            "lstm.bias_ih_l0": np.array([1.0, -1.5], dtype=np.float16),
            "double": np.array([0.1]),
            "steps": np.array([-(2**40), 7], dtype=np.int64),
            "none": np.zeros((0, 3), dtype=np.int32),
            "mask": np.array([True, False, True]),
        },
        FOLDER / "python.safetensors",
        metadata={"format": "np"},
    )


if __name__ == "__main__":
    main()
