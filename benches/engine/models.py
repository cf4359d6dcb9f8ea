"""Writes the models of `engine --served` that no package has: `python models.py FOLDER`. Weights are random, from a seed.

- `mlp.onnx`: 512 numbers, two layers of 512, ten answers: some 70 µs a row;
- `cnn.onnx`: a picture of 3 x 224 x 224 (600 KB), depthwise-separable convolutions as MobileNet has: some 2.5 ms.

Needs `numpy` and `onnx`.
"""

import pathlib
import sys

import numpy
from onnx import TensorProto, checker, helper, numpy_helper, save

random = numpy.random.default_rng(1)
nodes, weights = [], []


def weight(*shape):
    name = f"w{len(weights)}"
    scale = (2 / numpy.prod(shape[1:])) ** 0.5
    weights.append(numpy_helper.from_array((random.standard_normal(shape) * scale).astype(numpy.float32), name))
    return name


def node(kind, inputs, **attributes):
    nodes.append(helper.make_node(kind, inputs, [f"v{len(nodes)}"], **attributes))
    return nodes[-1].output[0]


def write(path, shape, output, classes):
    tensor = helper.make_tensor_value_info
    inputs = [tensor("x", TensorProto.FLOAT, ["batch", *shape])]
    nodes.append(helper.make_node("Softmax", [output], ["y"], axis=1))
    graph = helper.make_graph(nodes, "g", inputs, [tensor("y", TensorProto.FLOAT, ["batch", classes])], weights)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=8)
    checker.check_model(model)
    save(model, path)
    nodes.clear()
    weights.clear()


def mlp(path):
    value = "x"
    for rows, columns in ((512, 512), (512, 512)):
        value = node("Relu", [node("MatMul", [value, weight(rows, columns)])])
    write(path, [512], node("MatMul", [value, weight(512, 10)]), 10)


def cnn(path):
    def convolution(value, of, to, size, stride, group=1):
        pad = size // 2
        options = {"kernel_shape": [size] * 2, "strides": [stride] * 2, "pads": [pad] * 4, "group": group}
        return node("Relu", [node("Conv", [value, weight(to, of // group, size, size)], **options)])

    value, channels = convolution("x", 3, 32, 3, 2), 32
    for to, stride in ((64, 1), (64, 2), (128, 1), (128, 2), (256, 1), (256, 2), (512, 2)):
        value = convolution(value, channels, channels, 3, stride, group=channels)
        value, channels = convolution(value, channels, to, 1, 1), to
    pooled = node("Flatten", [node("GlobalAveragePool", [value])])
    write(path, [3, 224, 224], node("MatMul", [pooled, weight(channels, 1000)]), 1000)


folder = pathlib.Path(sys.argv[1])
mlp(folder / "mlp.onnx")
cnn(folder / "cnn.onnx")
