#!/usr/bin/env python3
"""ONNX Runtime's layers on the CPU, padded, with sequence_lens and without; see line_server.py.

usage: onnxruntime_cpu.py THREADS

Needs the packages onnxruntime and onnx.
"""

import os

import line_server

# PyTorch's gates, in the order of the ONNX operators: LSTM i o f c, GRU z r h.
ORDER = {"lstm": (0, 3, 1, 2), "gru": (1, 0, 2)}


def start(threads):
    cpus = sorted(os.sched_getaffinity(0))
    import numpy
    import onnx
    import onnxruntime
    from onnx import helper, numpy_helper
    from safetensors_file import read_safetensors

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    options.inter_op_num_threads = 1
    # A BLAS of numpy's that uses OpenMP has bound this thread to a CPU, which others would inherit.
    os.sched_setaffinity(0, cpus[:1] if threads <= len(cpus) else cpus)
    if 1 < threads <= len(cpus):
        options.add_session_config_entry("session.intra_op_thread_affinities",
                                         ";".join(str(cpu + 1) for cpu in cpus[1:threads]))

    def model(tensors, cell, x, with_lengths):
        count = max(int(name.split("_l")[1].split("_")[0]) for name in tensors) + 1
        ends = ["", "_reverse"] if "weight_hh_l0_reverse" in tensors else [""]
        hidden = tensors["weight_hh_l0"].shape[1]

        def ordered(name):
            blocks = numpy.split(tensors[name], len(ORDER[cell]))
            return numpy.concatenate([blocks[gate] for gate in ORDER[cell]])

        nodes = []
        constants = [numpy_helper.from_array(numpy.array([0, 0, -1], dtype=numpy.int64), "shape")]
        value = "x"
        for layer in range(count):
            stacks = {"W": ["weight_ih"], "R": ["weight_hh"], "B": ["bias_ih", "bias_hh"]}
            for name, parts in stacks.items():
                stack = [numpy.concatenate([ordered(f"{part}_l{layer}{end}") for part in parts]) for end in ends]
                constants.append(numpy_helper.from_array(numpy.stack(stack), f"{name}{layer}"))
            more = {"linear_before_reset": 1} if cell == "gru" else {}
            inputs = [value] + [f"{name}{layer}" for name in stacks] + (["lengths"] if with_lengths else [])
            nodes.append(helper.make_node(cell.upper(), inputs, [f"Y{layer}"], hidden_size=hidden,
                                          direction="bidirectional" if len(ends) == 2 else "forward", **more))
            value = "y" if layer == count - 1 else f"y{layer}"  # [T, D, N, H] to [T, N, D*H]
            nodes.append(helper.make_node("Transpose", [f"Y{layer}"], [f"T{layer}"], perm=[0, 2, 1, 3]))
            nodes.append(helper.make_node("Reshape", [f"T{layer}", "shape"], [value]))
        steps, batch, width = x.shape
        tensor = helper.make_tensor_value_info
        inputs = [tensor("x", onnx.TensorProto.FLOAT, [steps, batch, width])]
        if with_lengths:
            inputs.append(tensor("lengths", onnx.TensorProto.INT32, [batch]))
        output = tensor("y", onnx.TensorProto.FLOAT, [steps, batch, hidden * len(ends)])
        graph = helper.make_graph(nodes, "layers", inputs, [output], constants)
        result = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 14)])
        result.ir_version = 8
        return result.SerializeToString()

    def load(path, cell):
        tensors = read_safetensors(path)
        x, lengths = tensors.pop("x"), tensors.pop("lengths").astype(numpy.int32)

        def variant(with_lengths):
            session = onnxruntime.InferenceSession(model(tensors, cell, x, with_lengths), options,
                                                   providers=["CPUExecutionProvider"])
            inputs = {"x": x, "lengths": lengths} if with_lengths else {"x": x}
            return lambda: session.run(None, inputs), lambda: session.run(None, inputs)[0]

        return {"lengths": variant(True), "padded": variant(False)}

    return f"ONNX Runtime {onnxruntime.__version__}", load


if __name__ == "__main__":
    line_server.serve(start)
