"""Trains the digits classifier and writes every file of this example.

The scans are scikit-learn's `digits`: 1797 handwritten digits of 8x8 pixels, each 0 to 16, taken
from "Optical Recognition of Handwritten Digits" by E. Alpaydin and C. Kaynak (UCI Machine Learning
Repository, CC BY 4.0). 30% of them are held out, stratified by label, and never trained on.

    python -m venv /tmp/digits && . /tmp/digits/bin/activate
    pip install numpy==2.4.6 scikit-learn==1.9.1 onnx==1.23.2
    python examples/models/digits/train.py

Two runs on one machine write the same bytes: seeds are fixed and the linear algebra has one thread.
"""

import json
import os
import pathlib

for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ[name] = "1"  # read when numpy is loaded; threads would change the order of sums

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper
from onnx.reference import ReferenceEvaluator
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split
from sklearn.neural_network import MLPClassifier

HERE = pathlib.Path(__file__).resolve().parent
LABELS = ["zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine"]
PIXEL_COUNT = 64
PIXEL_MAX = 16
HIDDEN_COUNT = 64
HELD_OUT_SHARE = 0.3
SEED = 20
OPSET = 13
IR_VERSION = 8  # the ONNX release that brought it is from 2021: old engines read it too


def train(pixels, labels):
    """A network 64 -> 64 -> 10 that has seen each training scan, scaled to 0..1."""
    network = MLPClassifier(
        hidden_layer_sizes=(HIDDEN_COUNT,), alpha=1e-3, max_iter=400, random_state=SEED
    )
    return network.fit(pixels / PIXEL_MAX, labels)


def graph(network):
    """The same network as ONNX: scale, Gemm, Relu, Gemm, Softmax."""

    def constant(name, array):
        return numpy_helper.from_array(np.ascontiguousarray(array, dtype=np.float32), name)

    constants = [constant("scale", np.array(1 / PIXEL_MAX))]
    for layer, (weights, bias) in enumerate(zip(network.coefs_, network.intercepts_)):
        constants += [constant(f"weights_{layer}", weights), constant(f"bias_{layer}", bias)]
    nodes = [
        helper.make_node("Mul", ["pixels", "scale"], ["scaled"]),
        helper.make_node("Gemm", ["scaled", "weights_0", "bias_0"], ["hidden"]),
        helper.make_node("Relu", ["hidden"], ["active"]),
        helper.make_node("Gemm", ["active", "weights_1", "bias_1"], ["scores"]),
        helper.make_node("Softmax", ["scores"], ["probabilities"], axis=1),
    ]
    value = helper.make_tensor_value_info
    model = helper.make_model(
        helper.make_graph(
            nodes,
            "digits",
            [value("pixels", TensorProto.FLOAT, ["batch", PIXEL_COUNT])],
            [value("probabilities", TensorProto.FLOAT, ["batch", len(LABELS)])],
            constants,
        ),
        opset_imports=[helper.make_opsetid("", OPSET)],
        producer_name="train.py",
    )
    model.ir_version = IR_VERSION
    onnx.checker.check_model(model, full_check=True)
    return model


REQUEST = """{
  "inputs": [
    {
      "name": "pixels",
      "datatype": "FP32",
      "shape": [1, 64],
      "data": [
%s
      ]
    }
  ],
  "outputs": [
    { "name": "probabilities", "parameters": { "classification": 3 } }
  ]
}
"""


def write_requests(scan):
    """One scan as the three kinds of infer request; returns the size of the binary one's header."""
    # One line for each row of the scan, so that a reader can see the digit.
    rows = [", ".join(f"{pixel:2d}" for pixel in row) for row in scan.reshape(8, 8).tolist()]
    text = REQUEST % ",\n".join(" " * 8 + row for row in rows)
    (HERE / "request.json").write_text(text)

    raw = scan.astype("<f4").tobytes()
    request = json.loads(text)
    del request["inputs"][0]["data"]
    request["inputs"][0]["parameters"] = {"binary_data_size": len(raw)}
    header = json.dumps(request, separators=(",", ":")).encode()
    (HERE / "request.bin").write_bytes(header + raw)
    (HERE / "raw.bin").write_bytes(raw)
    return len(header)


def main():
    scans = load_digits()
    pixels, labels = scans.data.astype(np.uint8), scans.target.astype(np.uint8)
    seen, held_out, seen_labels, held_out_labels = train_test_split(
        pixels, labels, test_size=HELD_OUT_SHARE, stratify=labels, random_state=SEED
    )
    model = graph(train(seen, seen_labels))

    (HERE / "1").mkdir(exist_ok=True)
    (HERE / "1" / "model.onnx").write_bytes(model.SerializeToString(deterministic=True))
    (HERE / "labels.txt").write_text("".join(label + "\n" for label in LABELS))
    records = np.hstack([held_out, held_out_labels[:, None]])
    (HERE / "held_out.bin").write_bytes(records.tobytes())
    header_size = write_requests(held_out[0])

    inputs = {"pixels": held_out.astype(np.float32)}
    (probabilities,) = ReferenceEvaluator(model).run(None, inputs)
    right = int((probabilities.argmax(axis=1) == held_out_labels).sum())
    print(f"trained on {len(seen)} scans")
    print(f"held out   {len(held_out)} scans, {right} right: {right / len(held_out):.2%}")
    print(f"request    a {LABELS[held_out_labels[0]]}, seen as:")
    for index in np.argsort(-probabilities[0])[:3]:
        print(f"           {probabilities[0][index]:.6f}:{index}:{LABELS[index]}")
    print(f"Inference-Header-Content-Length of request.bin: {header_size}")


if __name__ == "__main__":
    main()
