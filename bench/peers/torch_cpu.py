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
    pack, unpack = torch.nn.utils.rnn.pack_padded_sequence, torch.nn.utils.rnn.pad_packed_sequence

    def training(layer, x, dy, packed_dy=None):
        """One way of a training step. `x`: a tensor or packed; what is packed has its dy packed too."""
        data = x if packed_dy is None else x.data
        data.requires_grad_(True)
        wanted = [data, *layer.parameters()]

        def forget():
            for tensor in wanted:
                tensor.grad = None

        def run():
            forget()
            with torch.enable_grad():
                y = layer(x)[0]
            if packed_dy is None:
                y.backward(dy)
            else:
                y.data.backward(packed_dy)

        def output():
            run()
            dx = data.grad
            if packed_dy is not None:
                dx = unpack(x._replace(data=dx))[0]
            return torch.cat([part.reshape(-1) for part in [dx, *(p.grad for p in layer.parameters())]]).numpy()

        return run, output, forget

    def load(path, cell):
        tensors = {name: torch.from_numpy(values) for name, values in read_safetensors(path).items()}
        x, lengths, dy = tensors.pop("x"), tensors.pop("lengths"), tensors.pop("dy", None)
        kind = torch.nn.LSTM if cell == "lstm" else torch.nn.GRU
        count = max(int(name.split("_l")[1].split("_")[0]) for name in tensors) + 1
        layer = kind(x.shape[2], tensors["weight_hh_l0"].shape[1], num_layers=count,
                     bidirectional="weight_hh_l0_reverse" in tensors)
        layer.load_state_dict(tensors)
        packed = pack(x, lengths, enforce_sorted=False)
        if dy is not None:
            return {"packed": training(layer, packed, dy, pack(dy, lengths, enforce_sorted=False).data),
                    "padded": training(layer, x, dy)}
        layer.eval()
        return {"packed": (lambda: layer(packed), lambda: unpack(layer(packed)[0])[0].numpy()),
                "padded": (lambda: layer(x), lambda: layer(x)[0].numpy())}

    return f"PyTorch {torch.__version__} ({blas()})", load


if __name__ == "__main__":
    line_server.serve(start)
