"""Softmax, sigmoid, argmax, top-k and thresholds as public `model.py` files spell them, in numpy."""

import json
import sys

import numpy as np

from cases import Cases, texts

rng = np.random.default_rng(7)
cases = Cases(sys.argv[1], "cases")
count = 2_000 if sys.argv[2] == "whole" else 150


def softmax(x):
    e = np.exp(x - np.max(x, axis=-1, keepdims=True))
    return e / e.sum(axis=-1, keepdims=True)


def sigmoid(x):
    with np.errstate(over="ignore"):
        return 1 / (1 + np.exp(-x))


def scores(rows, classes):
    """Scores with ties, of several sizes."""
    x = rng.standard_normal((rows, classes)) * rng.choice([0.5, 3.0, 20.0, 60.0])
    x = np.round(x, rng.integers(1, 6)) if rng.random() < 0.5 else x
    return x.astype(rng.choice([np.float32, np.float16]))


CLOSE = (1e-6, 3e-45)
for _ in range(count):
    rows, classes = int(rng.integers(1, 5)), int(rng.choice([1, 2, 3, 10, 17, 80, 1000]))
    x = scores(rows, classes)
    wide = x.astype(np.float32)
    # The values in double precision, of differences in FP32.
    shifted = (wide - wide.max(-1, keepdims=True)).astype(np.float64)
    exact = np.exp(shifted) / np.exp(shifted).sum(-1, keepdims=True)
    cases.add({"step": "head", "activation": "softmax"}, {"scores": x}, {"scores": (exact.astype(np.float32), *CLOSE)})
    for name, function in ("softmax", softmax), ("sigmoid", sigmoid), ("none", lambda x: x):
        want = function(wide)
        exact = want if name == "none" else (want, *CLOSE)
        cases.add({"step": "head", "activation": name}, {"scores": x}, {"scores": exact})
    # Choices are compared on given scores: after an activation, ties would depend on its last bits.
    labels = [f"class {index}" for index in range(classes)]
    k = int(rng.integers(1, 8))
    first = np.argsort(-wide, axis=-1, kind="stable")[:, :k]
    last = np.argsort(wide, axis=-1, kind="stable")[:, -k:][:, ::-1]
    for ties, chosen in ("first", first), ("last", last):
        values = np.take_along_axis(wide, chosen, -1)
        cases.add({"step": "head", "top_k": k, "ties": ties, "labels": labels}, {"scores": x}, {
            "scores": values, "indices": chosen.astype(np.int64),
            "labels": texts([[labels[index] for index in row] for row in chosen]),
            "texts": texts([[f"{value:f}:{index}:{labels[index]}" for value, index in zip(*pair)]
                            for pair in zip(values, chosen)]),
        })
    best = wide.argmax(-1)
    cases.add({"step": "head", "labels_file": "labels.json"}, {"scores": x}, {
        "index": best, "score": wide.max(-1), "label": texts([labels[index] for index in best]),
    }, {"labels.json": json.dumps({"id2label": dict(enumerate(labels))})})
    # A threshold that equals a score now and then.
    threshold = float(rng.choice(wide.ravel())) if rng.random() < 0.5 else float(np.round(rng.random(), 2))
    for compare in ">", ">=":
        kept = wide > threshold if compare == ">" else wide >= threshold
        width = int(kept.sum(-1).max())
        want_indices, want_scores = np.full((rows, width), -1), np.zeros((rows, width), np.float32)
        want_labels = [[""] * width for _ in range(rows)]
        for row in range(rows):
            # `[labels[i] for i, score in enumerate(scores) if score > threshold]`
            found = [index for index, is_kept in enumerate(kept[row]) if is_kept]
            want_indices[row, : len(found)] = found
            want_scores[row, : len(found)] = wide[row, found]
            want_labels[row][: len(found)] = [labels[index] for index in found]
        cases.add({"step": "head", "threshold": threshold, "compare": compare, "labels_file": "labels.txt"}, {"scores": x}, {
            "scores": want_scores, "indices": want_indices, "counts": kept.sum(-1),
            "labels": texts(want_labels).reshape(rows, width),
        }, {"labels.txt": "\n".join(labels) + "\n"})

# NaN and infinities.
nan, inf = np.nan, np.inf
x = np.array([[1, nan, 3, nan], [inf, 1, -inf, inf], [-inf, -inf, -inf, -inf], [0, -0.0, 0, -0.0]], np.float32)
with np.errstate(invalid="ignore"):
    cases.add({"step": "head", "activation": "softmax"}, {"scores": x}, {"scores": (softmax(x), *CLOSE)})
    cases.add({"step": "head", "activation": "sigmoid"}, {"scores": x}, {"scores": (sigmoid(x), *CLOSE)})
cases.add({"step": "head"}, {"scores": x}, {"index": x.argmax(-1)})
cases.add({"step": "head", "top_k": 3}, {"scores": x}, {"indices": np.argsort(-x, kind="stable")[:, :3]})
cases.add({"step": "head", "top_k": 3, "ties": "last"}, {"scores": x},
          {"indices": np.argsort(x, kind="stable")[:, -3:][:, ::-1]})
