#!/usr/bin/env python3
"""Writes the golden files of this folder: recurrent layers, packing, losses, networks as PyTorch computes them.

Everything is computed in float64 on the CPU from weights, inputs and states that a float32 holds
exactly, so that an engine in either precision can start from the same numbers. The seeds depend
only on the file's name: adding a case changes no other file.

  make_golden.py [--check] [--only PREFIX] [FOLDER]     default FOLDER: the folder of this script

--only is for files whose names begin so: another CPU may round the others differently. --check
writes nothing and compares with the files already there.
"""

import argparse
import json
import math
import pathlib
import struct
import sys
import zlib

import torch

LENGTHS = [3, 5, 1, 4]  # unequal and unsorted, without ties: PyTorch's order of ties is unspecified
INPUT, HIDDEN, PROJ = 3, 5, 2
NAMES = {torch.float64: "F64", torch.int64: "I64"}


def safetensors(tensors, metadata):
    """The bytes of a safetensors file: header length, JSON header, data."""
    header, blobs, offset = {"__metadata__": metadata}, [], 0
    for name, tensor in tensors.items():
        tensor = tensor.detach().contiguous()
        blob = tensor.numpy().astype(tensor.numpy().dtype.newbyteorder("<")).tobytes()
        header[name] = {"dtype": NAMES[tensor.dtype], "shape": list(tensor.shape),
                        "data_offsets": [offset, offset + len(blob)]}
        blobs.append(blob)
        offset += len(blob)
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    return struct.pack("<Q", len(text)) + text + b"".join(blobs)


def random(shape, bound, generator):
    """Uniform in [-bound, bound], rounded to float32, held as float64."""
    unit = torch.rand(shape, generator=generator, dtype=torch.float64)
    return ((2 * unit - 1) * bound).float().double()


def padded_with_nan(tensor, lengths):
    """Time-major input whose padding is NaN: whoever reads it shows at once."""
    tensor = tensor.clone()
    for n, length in enumerate(lengths):
        tensor[length:, n] = math.nan
    return tensor


def metadata(cell, module, lengths, note):
    return {
        "cell": cell, "input_size": str(module.input_size), "hidden_size": str(module.hidden_size),
        "num_layers": str(module.num_layers), "proj_size": str(module.proj_size),
        "bias": str(int(module.bias)), "bidirectional": str(int(module.bidirectional)),
        "lengths": ",".join(map(str, lengths)), "torch": torch.__version__, "note": note,
    }


def parameter_tensors(module):
    return {name: value.detach() for name, value in module.named_parameters()}


def packed_run(cell, module, x, lengths, h0, c0, note):
    """Runs a torch module on packed data and returns the file's content."""
    packed = torch.nn.utils.rnn.pack_padded_sequence(x, torch.tensor(lengths),
                                                     enforce_sorted=False)
    state = None if h0 is None else ((h0, c0) if cell == "lstm" else h0)
    output, last = module(packed, state)
    padded, _ = torch.nn.utils.rnn.pad_packed_sequence(output)
    tensors = dict(parameter_tensors(module))
    tensors["lengths"] = torch.tensor(lengths)
    tensors["input"] = padded_with_nan(x, lengths)
    tensors["input_packed"] = packed.data
    tensors["batch_sizes"] = packed.batch_sizes
    tensors["sorted_indices"] = packed.sorted_indices
    tensors["unsorted_indices"] = packed.unsorted_indices
    if h0 is not None:
        tensors["h0"] = h0
        if cell == "lstm":
            tensors["c0"] = c0
    tensors["output_packed"] = output.data
    tensors["output"] = padded
    if cell == "lstm":
        tensors["h_n"], tensors["c_n"] = last
    else:
        tensors["h_n"] = last
    return tensors, metadata(cell, module, lengths, note)


def module_for(cell, layers, directions, proj, bias, sizes=(INPUT, HIDDEN)):
    common = dict(input_size=sizes[0], hidden_size=sizes[1], num_layers=layers, bias=bias,
                  bidirectional=directions == 2)
    if cell == "lstm":
        module = torch.nn.LSTM(proj_size=proj, **common)
    elif cell == "gru":
        module = torch.nn.GRU(**common)
    else:
        module = torch.nn.RNN(nonlinearity=cell[len("rnn_"):], **common)
    return module.double()


def case_name(cell, layers, directions, proj, bias):
    return "_".join([cell, f"l{layers}", "bi" if directions == 2 else "uni"]
                    + (["proj"] if proj else []) + ["bias" if bias else "nobias"])


def layer_case(name, cell, layers, directions, proj, bias):
    generator = torch.Generator().manual_seed(zlib.crc32(name.encode()))
    module = module_for(cell, layers, directions, proj, bias)
    with torch.no_grad():
        for value in module.parameters():
            value.copy_(random(value.shape, 0.8, generator))
    N, rows = len(LENGTHS), layers * directions
    x = random((max(LENGTHS), N, INPUT), 1.5, generator)
    h0 = random((rows, N, proj or HIDDEN), 1.0, generator)
    c0 = random((rows, N, HIDDEN), 1.0, generator)
    return packed_run(cell, module, x, LENGTHS, h0, c0, "torch.nn module on packed data")


def filled_module(cell, layers, directions, sizes):
    """Weights by formula: element j of each tensor is 0.3 sin(j + 1 + k), k += 7 per tensor."""
    module, k = module_for(cell, layers, directions, 0, True, sizes), 0
    with torch.no_grad():
        for value in module.parameters():
            j = torch.arange(value.numel(), dtype=torch.float64)
            value.copy_((0.3 * torch.sin(j + 1 + k)).float().double().reshape(value.shape))
            k += 7
    return module


def formula(function, *shape):
    j = torch.arange(math.prod(shape), dtype=torch.float64)
    return function(j).float().double().reshape(shape)


def state_case(cell, with_state):
    """Three layers, both directions, every element of every state different (or no state)."""
    lengths, L, D, H, I = [5, 3, 1], 3, 2, 3, 2
    module = filled_module(cell, L, D, (I, H))
    x = formula(lambda j: torch.sin(0.37 * j + 0.2), 5, 3, I)
    h0 = c0 = None
    if with_state:
        h0 = formula(lambda j: 0.1 * torch.cos(j), L * D, 3, H)
        c0 = formula(lambda j: 0.2 * torch.sin(j), L * D, 3, H)
    return packed_run(cell, module, x, lengths, h0, c0, "weights, input and states by formula")


def gru_reset_before_case(name, layers, directions, bias):
    """torch has no such module: a loop over torch functions, each sequence alone."""
    generator = torch.Generator().manual_seed(zlib.crc32(name.encode()))
    module = module_for("gru", layers, directions, 0, bias)
    with torch.no_grad():
        for value in module.parameters():
            value.copy_(random(value.shape, 0.8, generator))
    N, H = len(LENGTHS), HIDDEN
    x = random((max(LENGTHS), N, INPUT), 1.5, generator)
    h0 = random((layers * directions, N, H), 1.0, generator)
    output = torch.zeros((max(LENGTHS), N, directions * H), dtype=torch.float64)
    h_n = torch.zeros_like(h0)
    weights = parameter_tensors(module)
    zeros = torch.zeros(3 * H, dtype=torch.float64)
    for n, length in enumerate(LENGTHS):
        stream = x[:length, n]
        for layer in range(layers):
            halves = []
            for direction in range(directions):
                suffix = f"_l{layer}" + ("_reverse" if direction else "")
                w_ih, w_hh = weights["weight_ih" + suffix], weights["weight_hh" + suffix]
                b = (weights.get("bias_ih" + suffix, zeros)
                     + weights.get("bias_hh" + suffix, zeros))
                h, rows = h0[layer * directions + direction, n], []
                order = stream.flip(0) if direction else stream
                for step in order:
                    a = w_ih @ step + b
                    r = torch.sigmoid(a[:H] + w_hh[:H] @ h)
                    z = torch.sigmoid(a[H:2 * H] + w_hh[H:2 * H] @ h)
                    h = (1 - z) * torch.tanh(a[2 * H:] + w_hh[2 * H:] @ (r * h)) + z * h
                    rows.append(h)
                h_n[layer * directions + direction, n] = h
                half = torch.stack(rows)
                halves.append(half.flip(0) if direction else half)
            stream = torch.cat(halves, 1)
        output[:length, n] = stream
    pack = torch.nn.utils.rnn.pack_padded_sequence
    packed = pack(x, torch.tensor(LENGTHS), enforce_sorted=False)
    tensors = dict(weights)
    tensors.update({
        "lengths": torch.tensor(LENGTHS), "input": padded_with_nan(x, LENGTHS),
        "input_packed": packed.data, "batch_sizes": packed.batch_sizes,
        "sorted_indices": packed.sorted_indices, "unsorted_indices": packed.unsorted_indices,
        "h0": h0, "output_packed": pack(output, torch.tensor(LENGTHS), enforce_sorted=False).data,
        "output": output, "h_n": h_n})
    note = "no torch module: a loop over torch functions, one sequence at a time"
    return tensors, metadata("gru_reset_before", module, LENGTHS, note)


def gradients_case(cell, layers, directions, proj, bias, layer_file):
    """Of sum(output * by.output) + sum(h_n * by.h_n) + sum(c_n * by.c_n), for a layer_case()."""
    tensors, about = layer_file
    module = module_for(cell, layers, directions, proj, bias)
    module.load_state_dict({name: tensors[name] for name, _ in module.named_parameters()})
    lengths = tensors["lengths"]
    x, h0 = tensors["input"].clone().requires_grad_(), tensors["h0"].clone().requires_grad_()
    c0 = tensors["c0"].clone().requires_grad_() if cell == "lstm" else None
    packed = torch.nn.utils.rnn.pack_padded_sequence(x, lengths, enforce_sorted=False)
    output, last = module(packed, (h0, c0) if cell == "lstm" else h0)
    results = {"output": torch.nn.utils.rnn.pad_packed_sequence(output)[0]}
    results["h_n"], results["c_n"] = last if cell == "lstm" else (last, None)
    results = {name: value for name, value in results.items() if value is not None}
    by = {name: formula(lambda j, k=k: torch.sin(0.7 * j + k), *value.shape)
          for k, (name, value) in enumerate(results.items())}
    sum((value * by[name]).sum() for name, value in results.items()).backward()
    content = {f"by.{name}": value for name, value in by.items()}
    content.update({name: value.grad for name, value in module.named_parameters()})
    content.update({"input": x.grad, "h0": h0.grad})
    if cell == "lstm":
        content["c0"] = c0.grad
    return content, {**about, "kind": "gradients", "note": "gradients of a layer file"}


def pack_case(lengths, trailing, batch_first, enforce_sorted, total_length, padding_value):
    N, T = len(lengths), max(lengths)
    shape = ((N, T) if batch_first else (T, N)) + trailing
    x = torch.arange(math.prod(shape), dtype=torch.float64).reshape(shape)
    packed = torch.nn.utils.rnn.pack_padded_sequence(
        x, torch.tensor(lengths), batch_first=batch_first, enforce_sorted=enforce_sorted)
    padded, back = torch.nn.utils.rnn.pad_packed_sequence(
        packed, batch_first=batch_first, padding_value=padding_value, total_length=total_length)
    assert back.tolist() == lengths
    tensors = {"lengths": torch.tensor(lengths), "input": x, "data": packed.data,
               "batch_sizes": packed.batch_sizes, "padded": padded}
    if packed.sorted_indices is not None:
        tensors["sorted_indices"] = packed.sorted_indices
        tensors["unsorted_indices"] = packed.unsorted_indices
    return tensors, {"kind": "pack", "lengths": ",".join(map(str, lengths)),
                     "batch_first": str(int(batch_first)),
                     "enforce_sorted": str(int(enforce_sorted)),
                     "total_length": str(0 if total_length is None else total_length),
                     "padding_value": repr(float(padding_value)), "torch": torch.__version__}


def loss_file(name, inputs, configurations, loss):
    """`loss` of inputs under each configuration: value.k, and gradient.k for upstream gradients by.k."""
    tensors = dict(inputs)
    for k, configuration in enumerate(configurations):
        logits = inputs["logits"].clone().requires_grad_()
        value = loss(logits, **configuration)
        by = formula(lambda j, k=k: torch.cos(0.7 * j + k), *value.shape)
        (gradient,) = torch.autograd.grad(value, logits, by)
        tensors.update({f"value.{k}": value, f"by.{k}": by, f"gradient.{k}": gradient})
    return tensors, {"kind": "loss", "loss": name, "torch": torch.__version__}


def loss_cases():
    functional, reductions = torch.nn.functional, ["none", "sum", "mean"]
    generator = torch.Generator().manual_seed(zlib.crc32(b"losses"))
    logits, weight = random((6, 4), 3.0, generator), torch.tensor([0.5, 1.0, 2.0, 0.25]).double()
    targets = torch.tensor([1, 0, -100, 3, 2, 1])
    yield "losses_cross_entropy", loss_file(
        "cross_entropy", {"logits": logits, "targets": targets, "weight": weight},
        [{"reduction": r, "weight": w, "label_smoothing": e, "ignore_index": i}
         for r in reductions for w in [None, weight] for e in [0.0, 0.1] for i in [-100, 1]],
        lambda x, ignore_index, **options: functional.cross_entropy(
            x, targets.clamp(min=0) if ignore_index == 1 else targets,
            ignore_index=ignore_index, **options))
    target = random((6, 4), 3.0, generator)
    yield "losses_mse", loss_file("mse", {"logits": logits, "target": target},
                                  [{"reduction": r} for r in reductions],
                                  lambda x, **options: functional.mse_loss(x, target, **options))
    wide, unit = 30 * logits, (random((6, 4), 1.0, generator) + 1) / 2
    full = random((6, 4), 1.0, generator).abs()
    yield "losses_bce", loss_file(
        "bce", {"logits": wide, "target": unit, "weight": full, "pos_weight": weight},
        [{"reduction": r, "weight": w, "pos_weight": p}
         for r in reductions for w in [None, full] for p in [None, weight]],
        lambda x, **options: functional.binary_cross_entropy_with_logits(x, unit, **options))
    # Repeats, none, as many as steps, a repeat that needs one step more than there is.
    lengths, target_lengths = torch.tensor([7, 4, 3, 3]), torch.tensor([3, 0, 3, 3])
    labels, steps = torch.tensor([1, 1, 2, 3, 1, 2, 2, 2, 3]), random((7, 4, 4), 2.0, generator)
    yield "losses_ctc", loss_file(
        "ctc", {"logits": steps, "targets": labels, "lengths": lengths,
                "target_lengths": target_lengths},
        [{"reduction": r, "zero_infinity": True} for r in reductions],
        lambda x, **options: functional.ctc_loss(x.log_softmax(2), labels, lengths, target_lengths,
                                                 **options))


def optimizer_case(make, clip):
    """Seven steps with given gradients: `values.k` after step k, and the norms before clipping."""
    count, steps = 6, 7
    value = torch.nn.Parameter(formula(lambda j: torch.cos(1.3 * j), count))
    optimizer = make([value])
    tensors = {"values.0": value.detach().clone()}
    for k in range(1, steps + 1):
        gradient = formula(lambda j, k=k: torch.sin(0.9 * j + 1.7 * k) * (1 + j), count)
        tensors[f"gradients.{k}"], value.grad = gradient, gradient.clone()
        norm = torch.nn.utils.clip_grad_norm_([value], clip) if clip else gradient.norm()
        if k == 5:  # a change of the learning rate
            optimizer.param_groups[0]["lr"] *= 0.5
        optimizer.step()
        tensors[f"values.{k}"] = value.detach().clone()
        tensors[f"norm.{k}"] = norm.detach().reshape(1)
    return tensors, {"kind": "optimizer", "torch": torch.__version__,
                     "note": "learning rate halved from step 5 on"}


def rrn_case(variant):
    """A recurrent relational network as its paper writes it: every message of its own, in a loop.

    Two graphs of 4 and 2 nodes, H = 5, three steps, a linear readout of every node. With `article`,
    the LSTM runs over a graph's nodes as if they were time, from the graph's state of the step
    before.
    """
    H, F, C, steps, sizes = 5, 2, 3, 3, [4, 2]
    edges = [[(0, 0), (1, 0), (2, 0), (3, 1), (0, 2), (1, 2), (2, 2), (3, 2)], [(0, 1), (1, 1)]]
    generator = torch.Generator().manual_seed(zlib.crc32(f"rrn_{variant}".encode()))

    def mlp(inputs):
        widths = [inputs, H, H, H, H]
        layers = []
        for a, b in zip(widths, widths[1:]):
            layers += [torch.nn.Linear(a, b), torch.nn.ReLU()]
        return torch.nn.Sequential(*layers[:-1])

    model = torch.nn.ModuleDict({"message": mlp(2 * H + F), "node": mlp(2 * H),
                                 "lstm": torch.nn.LSTM(H, H), "readout": torch.nn.Linear(H, C)})
    model = model.double()
    with torch.no_grad():
        for value in model.parameters():
            value.copy_(random(value.shape, 0.8, generator))
    x = random((sum(sizes), H), 1.5, generator).requires_grad_()
    e = random((len(sizes), F), 1.5, generator).requires_grad_()
    targets = torch.tensor([2, 0, 1, 1, 0, 2])
    scores = [[] for _ in range(steps)]
    for g, (size, own_edges) in enumerate(zip(sizes, edges)):
        own_x = x[sum(sizes[:g]):][:size]
        h, state = own_x, None
        for step in range(steps):
            sums = [torch.zeros(H, dtype=torch.float64) for _ in range(size)]
            for a, b in own_edges:
                sums[b] = sums[b] + model["message"](torch.cat([h[a], h[b], e[g]]))
            u = model["node"](torch.cat([torch.stack(sums), own_x], 1))
            if variant == "article":
                h, state = model["lstm"](u[:, None], state)
                h = h[:, 0]
            else:
                h, state = model["lstm"](u[None], state)
                h = h[0]
            scores[step].append(model["readout"](h))
    scores = [torch.cat(of_step) for of_step in scores]
    loss = sum(torch.nn.functional.cross_entropy(of_step, targets) for of_step in scores) / steps
    loss.backward()
    content = {name: value.detach() for name, value in model.named_parameters()}
    content.update({"x": x, "e": e, "targets": targets, "sizes": torch.tensor(sizes), "loss": loss})
    for g, own_edges in enumerate(edges):
        content[f"edges.{g}"] = torch.tensor(own_edges)
    for step, of_step in enumerate(scores):
        content[f"scores.{step}"] = of_step
    for name, value in [*model.named_parameters(), ("x", x), ("e", e)]:
        content["gradient." + name] = value.grad
    return content, {"kind": "rrn", "variant": variant, "torch": torch.__version__,
                     "note": "rows of x, scores and targets: graph after graph"}


def cases():
    for cell in ["lstm", "gru", "rnn_tanh", "rnn_relu"]:
        for layers in [1, 2]:
            for directions in [1, 2]:
                for proj in [0, PROJ] if cell == "lstm" else [0]:
                    for bias in [True, False]:
                        name = case_name(cell, layers, directions, proj, bias)
                        case = layer_case(name, cell, layers, directions, proj, bias)
                        yield name, case
                        if bias:
                            yield "gradients_" + name, gradients_case(cell, layers, directions, proj, bias, case)
    for layers, directions, bias in [(1, 1, False), (2, 2, True)]:
        name = case_name("gru_reset_before", layers, directions, 0, bias)
        yield name, gru_reset_before_case(name, layers, directions, bias)
    for cell in ["lstm", "gru"]:
        yield f"{cell}_l3_bi_states", state_case(cell, True)
        yield f"{cell}_l3_bi_nostates", state_case(cell, False)
    optim = torch.optim
    yield "optimizers_sgd", optimizer_case(lambda p: optim.SGD(p, 0.1, weight_decay=0.05), 0)
    yield "optimizers_sgd_momentum", optimizer_case(lambda p: optim.SGD(p, 0.1, 0.9), 2.0)
    yield "optimizers_sgd_nesterov", optimizer_case(
        lambda p: optim.SGD(p, 0.1, 0.8, weight_decay=0.05, nesterov=True), 0)
    yield "optimizers_adam", optimizer_case(
        lambda p: optim.Adam(p, 0.02, (0.8, 0.95), 1e-3, weight_decay=0.05), 0)
    yield "optimizers_adamw", optimizer_case(lambda p: optim.AdamW(p, 0.02, weight_decay=0.1), 2.0)
    yield "pack_unsorted", pack_case([3, 5, 1, 4], (2,), False, False, None, 0.0)
    yield "pack_unsorted_batch_first", pack_case([2, 6, 1], (3,), True, False, 8, -1.5)
    yield "pack_sorted_ties", pack_case([4, 4, 2, 2, 2, 1], (2,), False, True, None, 0.0)
    yield "pack_equal", pack_case([3, 3, 3], (2,), False, True, None, 0.0)
    yield "pack_one", pack_case([4], (2,), True, True, 6, 7.0)
    yield "pack_no_trailing", pack_case([1, 3, 2], (), False, False, None, 0.0)
    yield "pack_two_trailing", pack_case([1, 3, 2], (2, 3), True, False, 4, 0.0)
    yield from loss_cases()
    for variant in ["paper", "article"]:
        yield f"rrn_{variant}", rrn_case(variant)


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("folder", nargs="?", default=pathlib.Path(__file__).resolve().parent,
                        type=pathlib.Path, metavar="FOLDER")
    parser.add_argument("--only", default="", metavar="PREFIX", help="only files whose names begin so")
    parser.add_argument("--check", action="store_true",
                        help="write nothing, compare with the files that are there")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    total, differences, names = 0, [], set()
    for name, (tensors, about) in cases():
        path = arguments.folder / (name + ".safetensors")
        names.add(path.name)
        if not name.startswith(arguments.only):
            continue
        content = safetensors(tensors, about)
        total += len(content)
        if not arguments.check:
            path.write_bytes(content)
        elif not path.exists() or path.read_bytes() != content:
            differences.append(path.name)
    stale = {p.name for p in arguments.folder.glob("*.safetensors")} - names
    print(f"{len(names)} files, {total} bytes, torch {torch.__version__}")
    for name in differences:
        print("differs or missing:", name)
    for name in sorted(stale):
        print("not made by this script:", name)
    return 1 if differences or stale else 0


if __name__ == "__main__":
    sys.exit(main())
