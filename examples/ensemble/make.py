"""Makes the model that shrinks an image, and the request of this example.

The scans that `digits` was trained on were made from bitmaps of 32x32 pixels: each value is how many
of 4x4 pixels are set. `shrink` does that to an image of 32x32 grey values: the mean of each block,
scaled to 0..16. The request is a bitmap from which the first held-out scan comes back exactly.

    python -m venv /tmp/shrink && . /tmp/shrink/bin/activate
    pip install numpy==2.4.6 onnx==1.23.2
    python examples/ensemble/make.py
"""

import json
import pathlib

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper
from onnx.reference import ReferenceEvaluator

HERE = pathlib.Path(__file__).resolve().parent
SCANS = HERE.parent / "models" / "digits" / "held_out.bin"
SIDE = 32
BLOCK = 4
OPSET = 13
IR_VERSION = 8  # as the digits: old engines read it too


def graph():
    """Cast, mean of each block, scale, rows in a line."""
    side = SIDE // BLOCK
    constants = [
        numpy_helper.from_array(np.array(BLOCK * BLOCK / 255, dtype=np.float32), "scale"),
        numpy_helper.from_array(np.array([-1, 1, SIDE, SIDE], dtype=np.int64), "planes"),
        numpy_helper.from_array(np.array([-1, side * side], dtype=np.int64), "line"),
    ]
    nodes = [
        helper.make_node("Cast", ["image"], ["grey"], to=TensorProto.FLOAT),
        helper.make_node("Reshape", ["grey", "planes"], ["plane"]),
        helper.make_node("AveragePool", ["plane"], ["means"], kernel_shape=[BLOCK, BLOCK], strides=[BLOCK, BLOCK]),
        helper.make_node("Mul", ["means", "scale"], ["scaled"]),
        helper.make_node("Reshape", ["scaled", "line"], ["pixels"]),
    ]
    value = helper.make_tensor_value_info
    model = helper.make_model(
        helper.make_graph(
            nodes,
            "shrink",
            [value("image", TensorProto.UINT8, ["batch", SIDE, SIDE])],
            [value("pixels", TensorProto.FLOAT, ["batch", side * side])],
            constants,
        ),
        opset_imports=[helper.make_opsetid("", OPSET)],
        producer_name="make.py",
    )
    model.ir_version = IR_VERSION
    onnx.checker.check_model(model, full_check=True)
    return model


def bitmap(scan):
    """An image whose blocks have as many white pixels as the scan says, from the top left on."""
    ranks = np.arange(BLOCK * BLOCK).reshape(BLOCK, BLOCK)
    side = SIDE // BLOCK
    blocks = scan.reshape(side, side, 1, 1) > ranks
    return (blocks.transpose(0, 2, 1, 3).reshape(SIDE, SIDE) * 255).astype(np.uint8)


def request(image):
    rows = ",\n".join("        " + ",".join(f"{pixel:3d}" for pixel in row) for row in image.tolist())
    return f"""{{
  "inputs": [
    {{
      "name": "image",
      "datatype": "UINT8",
      "shape": [1, {SIDE}, {SIDE}],
      "data": [
{rows}
      ]
    }}
  ],
  "outputs": [
    {{ "name": "probabilities", "parameters": {{ "classification": 3 }} }}
  ]
}}
"""


def main():
    scan = np.frombuffer(SCANS.read_bytes(), dtype=np.uint8)[: (SIDE // BLOCK) ** 2]
    model, image = graph(), bitmap(scan)
    folder = HERE / "shrink" / "1"
    folder.mkdir(exist_ok=True)
    (folder / "model.onnx").write_bytes(model.SerializeToString(deterministic=True))
    (HERE / "request.json").write_text(request(image))
    json.loads((HERE / "request.json").read_text())
    (pixels,) = ReferenceEvaluator(model).run(None, {"image": image[None]})
    assert np.allclose(pixels[0], scan, atol=1e-5), "the scan comes back"
    print(f"model {(folder / 'model.onnx').stat().st_size} bytes")


if __name__ == "__main__":
    main()
