#!/usr/bin/env python3
"""PyTorch's layers on the CPU, packed and padded; see line_server.py.

usage: torch_cpu.py THREADS
"""

import os
import warnings

import line_server


def blas():
    """The BLAS that the process has loaded: it decides how fast PyTorch is."""
    names = {os.path.basename(os.path.dirname(line.split()[-1])) if "openblas" in line else "reference BLAS"
             for line in open("/proc/self/maps", encoding="utf-8") if "libblas.so" in line}
    return ", ".join(sorted(names)) or "its own BLAS"


def start(threads):
    import torch
    from safetensors_file import read_safetensors

    warnings.filterwarnings("ignore")
    torch.set_num_threads(threads)
    torch.set_grad_enabled(False)

    def load(path, cell):
        tensors = {name: torch.from_numpy(values) for name, values in read_safetensors(path).items()}
        x, lengths = tensors.pop("x"), tensors.pop("lengths")
        kind = torch.nn.LSTM if cell == "lstm" else torch.nn.GRU
        count = max(int(name.split("_l")[1].split("_")[0]) for name in tensors) + 1
        layer = kind(x.shape[2], tensors["weight_hh_l0"].shape[1], num_layers=count,
                     bidirectional="weight_hh_l0_reverse" in tensors).eval()
        layer.load_state_dict(tensors)
        packed = torch.nn.utils.rnn.pack_padded_sequence(x, lengths, enforce_sorted=False)
        unpacked = torch.nn.utils.rnn.pad_packed_sequence
        return {"packed": (lambda: layer(packed), lambda: unpacked(layer(packed)[0])[0].numpy()),
                "padded": (lambda: layer(x), lambda: layer(x)[0].numpy())}

    return f"PyTorch {torch.__version__} ({blas()})", load


if __name__ == "__main__":
    line_server.serve(start)
