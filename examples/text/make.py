"""Trains the encoder of this example and writes it and its labels.

The network is that of fastText: the mean of the vectors of all trigrams, then one linear layer. It learns from the
sentences of `sentences.txt`, which were written for this example; those with a star are held out. Two runs write the
same bytes: the seed is fixed and the linear algebra has one thread.

    python -m venv /tmp/text && . /tmp/text/bin/activate
    pip install numpy==2.4.6 onnx==1.23.2
    python examples/text/make.py
"""

import os
import pathlib
import sys

for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ[name] = "1"  # read when numpy is loaded; threads would change the order of sums

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper
from onnx.reference import ReferenceEvaluator

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE / "language_tokenizer" / "1"))
sys.dont_write_bytecode = True

from trigrams import TOKEN_COUNT, encode  # noqa: E402

LENGTH = 128
WIDTH = 8
ROUNDS = 400
RATE = 0.02
DECAY = 1e-4
SEED = 20
OPSET = 13
IR_VERSION = 8  # as the digits: old engines read it too


def sentences():
    """Languages, and for each sentence its tokens, the index of its language and whether it is held out."""
    blocks = (HERE / "sentences.txt").read_text(encoding="utf-8").split("\n\n")
    languages, rows = [], []
    for index, block in enumerate(blocks):
        language, *lines = block.splitlines()
        languages.append(language)
        rows += [(encode(line.lstrip("* "), LENGTH), index, line.startswith("*")) for line in lines]
    ids, labels, is_held_out = zip(*rows)
    return languages, np.stack(ids), np.array(labels), np.array(is_held_out)


def counts(ids):
    """Share of each token in each sentence."""
    table = np.zeros((len(ids), TOKEN_COUNT))
    np.add.at(table, (np.arange(len(ids))[:, None], ids), 1)
    table[:, 0] = 0
    return table / table.sum(axis=1, keepdims=True)


def softmax(scores):
    powers = np.exp(scores - scores.max(axis=1, keepdims=True))
    return powers / powers.sum(axis=1, keepdims=True)


def train(ids, labels, language_count):
    """Vectors, weights and bias, by gradient descent (Adam) on the cross entropy of all sentences at once."""
    random = np.random.default_rng(SEED)
    tokens, wanted = counts(ids), np.eye(language_count)[labels]
    shapes = [(TOKEN_COUNT, WIDTH), (WIDTH, language_count), (language_count,)]
    values = [random.normal(0, 0.1, shape) for shape in shapes]
    means, squares = ([np.zeros(shape) for shape in shapes] for _ in range(2))
    for step in range(1, ROUNDS + 1):
        vectors, weights, bias = values
        pooled = tokens @ vectors
        wrong = (softmax(pooled @ weights + bias) - wanted) / len(ids)
        slopes = [tokens.T @ (wrong @ weights.T), pooled.T @ wrong, wrong.sum(axis=0)]
        for value, slope, mean, square in zip(values, slopes, means, squares):
            slope = slope + DECAY * value
            mean += 0.1 * (slope - mean)
            square += 0.001 * (slope**2 - square)
            value -= RATE * (mean / (1 - 0.9**step)) / (np.sqrt(square / (1 - 0.999**step)) + 1e-8)
    values[0][0] = 0
    return [value.astype(np.float32) for value in values]


def graph(vectors, weights, bias):
    """The vectors of the tokens, their mean where the mask is 1, one linear layer."""
    constants = [
        numpy_helper.from_array(vectors, "vectors"),
        numpy_helper.from_array(weights, "weights"),
        numpy_helper.from_array(bias, "bias"),
        numpy_helper.from_array(np.array([1], dtype=np.int64), "tokens_axis"),
        numpy_helper.from_array(np.array([2], dtype=np.int64), "vector_axis"),
    ]
    node = helper.make_node
    nodes = [
        node("Gather", ["vectors", "ids"], ["all"]),
        node("Unsqueeze", ["mask", "vector_axis"], ["column"]),
        node("Mul", ["all", "column"], ["masked"]),
        node("ReduceSum", ["masked", "tokens_axis"], ["sum"], keepdims=0),
        node("ReduceSum", ["mask", "tokens_axis"], ["count"], keepdims=1),
        node("Div", ["sum", "count"], ["mean"]),
        node("MatMul", ["mean", "weights"], ["product"]),
        node("Add", ["product", "bias"], ["scores"]),
        node("Softmax", ["scores"], ["probabilities"], axis=1),
    ]
    value = helper.make_tensor_value_info
    model = helper.make_model(
        helper.make_graph(
            nodes,
            "language_encoder",
            [
                value("ids", TensorProto.INT64, ["batch", LENGTH]),
                value("mask", TensorProto.FLOAT, ["batch", LENGTH]),
            ],
            [value("probabilities", TensorProto.FLOAT, ["batch", len(bias)])],
            constants,
        ),
        opset_imports=[helper.make_opsetid("", OPSET)],
        producer_name="make.py",
    )
    model.ir_version = IR_VERSION
    onnx.checker.check_model(model, full_check=True)
    return model


def main():
    languages, ids, labels, is_held_out = sentences()
    model = graph(*train(ids[~is_held_out], labels[~is_held_out], len(languages)))
    file = HERE / "language_encoder" / "1" / "model.onnx"
    file.write_bytes(model.SerializeToString(deterministic=True))
    (HERE / "language_labels" / "1" / "labels.txt").write_text("\n".join(languages) + "\n")

    mask = (ids != 0).astype(np.float32)
    (probabilities,) = ReferenceEvaluator(model).run(None, {"ids": ids, "mask": mask})
    is_right = probabilities.argmax(axis=1) == labels
    sure = np.median(probabilities.max(axis=1)[is_held_out])
    print(f"model {file.stat().st_size} bytes, longest sentence {int(mask.sum(axis=1).max())} tokens")
    print(f"held out: {is_right[is_held_out].sum()} of {is_held_out.sum()} right, median score {sure:.3f}")
    print(f"trained on: {is_right[~is_held_out].sum()} of {(~is_held_out).sum()} right")


if __name__ == "__main__":
    main()
