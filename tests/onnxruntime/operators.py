"""Models with operators of the package onnxruntime-extensions.

    python operators.py write REPOSITORY     writes the models, and prints the path of the library
"""

import pathlib
import sys

import onnxruntime_extensions
from onnx import TensorProto, helper


def model(domain, operator, inputs, outputs):
    node = helper.make_node(operator, ["x"], ["y"], domain=domain)
    graph = helper.make_graph([node], "g", [helper.make_tensor_value_info("x", *inputs)], [helper.make_tensor_value_info("y", *outputs)])
    opsets = [helper.make_opsetid("", 20), helper.make_opsetid(domain, 1)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=9).SerializeToString()


MODELS = {
    "upper": model("ai.onnx.contrib", "StringUpper", (TensorProto.STRING, ["N"]), (TensorProto.STRING, ["N"])),
    "decode": model("com.microsoft.extensions", "DecodeImage", (TensorProto.UINT8, ["N"]), (TensorProto.UINT8, ["H", "W", 3])),
}


def main():
    repository = pathlib.Path(sys.argv[2])
    for name, file in MODELS.items():
        (repository / name / "1").mkdir(parents=True)
        (repository / name / "1/model.onnx").write_bytes(file)
    print(onnxruntime_extensions.get_library_path())


main()
