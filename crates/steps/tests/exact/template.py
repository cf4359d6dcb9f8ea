"""JSON as Python writes and reads it: `json.dumps` of `tolist()`, `round`, and `np.array` of `json.loads`."""

import json
import sys

import numpy as np

from cases import Cases, texts

rng = np.random.default_rng(13)
cases = Cases(sys.argv[1], "cases")
count = 2_000 if sys.argv[2] == "whole" else 150
LETTERS = [chr(value) for value in (*range(1, 128), 0xE9, 0x2028, 0x4E2D, 0x1D11E, 0x10FFFF, 0xFFFD)]


def text():
    return "".join(rng.choice(LETTERS, int(rng.integers(0, 12))))


def floats(shape, datatype):
    """Of all sizes, with exact halves of decimal digits and powers of two among them."""
    kind = rng.integers(4)
    if kind == 0:
        bits = np.uint32 if datatype == np.float32 else np.uint64
        return rng.integers(0, np.iinfo(bits).max, shape, dtype=bits).view(datatype)
    if kind == 1:
        return (rng.integers(-4000, 4000, shape) / 2.0 ** rng.integers(0, 12)).astype(datatype)
    if kind == 2:
        return (2.0 ** rng.integers(-40, 70, shape)).astype(datatype)
    return rng.random(shape).astype(datatype)


for _ in range(count):
    rows, number = int(rng.integers(1, 4)), int(rng.integers(0, 5))
    datatype = [np.float32, np.float64][rng.integers(2)]
    boxes, scores = floats((rows, number, 4), datatype), floats((rows, number), datatype)
    labels = texts([[text() for _ in range(number)] for _ in range(rows)]).reshape(rows, number)
    classes = rng.integers(-(2**63), 2**63 - 1, (rows, number))
    counts, flag = rng.integers(0, 6, rows), rng.random(rows) < 0.5
    digits, ascii = int(rng.integers(0, 8)), bool(rng.random() < 0.5)
    inputs = {"boxes": boxes, "scores": scores, "labels": labels, "classes": classes, "counts": counts, "flag": flag}
    step = {"step": "template", "inputs": {"tensors": list(inputs)}, "ascii": ascii}
    constant = {"é": [1, 2.50, 1e20, None, True, "x\n"], "": {}}

    whole = {"boxes": {"tensor": "boxes"}, "flag": {"tensor": "flag", "index": [0]}, "constant": constant,
             "labels": {"tensor": "labels"}, "classes": {"tensor": "classes"}, "rounded": {"tensor": "scores", "round": digits}}
    want = {"boxes": boxes.tolist(), "flag": bool(flag[0]), "constant": constant, "labels": labels.tolist(), "classes": classes.tolist(),
            "rounded": [[round(score, digits) for score in row] for row in scores.tolist()]}
    cases.add({**step, "template": whole}, inputs, {"json": texts([json.dumps(want, ensure_ascii=ascii)])})

    item = {"box": {"tensor": "boxes"}, "score": {"tensor": "scores", "round": digits}, "label": {"tensor": "labels"},
            "x": {"tensor": "boxes", "index": [1]}, "flags": {"tensor": "flag", "whole": True}}
    template = {"objects": {"each": item, "over": "scores", "count": "counts"}, "flag": {"tensor": "flag"}}
    wants = []
    for row in range(rows):
        objects = [{"box": boxes[row, i].tolist(), "score": round(float(scores[row, i]), digits), "label": labels[row, i],
                    "x": boxes[row, i, 1].item(), "flags": flag.tolist()} for i in range(min(number, counts[row]))]
        wants.append(json.dumps({"objects": objects, "flag": bool(flag[row])}, ensure_ascii=ascii))
    cases.add({**step, "template": template, "per_row": True}, inputs, {"json": texts(wants)})

    # And back: what Python wrote is what it reads.
    read = {"scores": datatype, "classes": np.int64, "labels": object, "flag": np.bool_}
    finite = {**inputs, "scores": scores, "flag": flag}
    for name, target in read.items():
        value = finite[name]
        document = json.dumps({"data": [{"x": 0}, {name: value.tolist()}]}, ensure_ascii=ascii)
        loaded = json.loads(document)["data"][1][name]
        array = texts(loaded).reshape(1, *value.shape) if target is object else np.array([loaded], target)
        if target is object and number == 0 or not value.size:
            continue
        names = {np.float32: "FP32", np.float64: "FP64", np.int64: "INT64", object: "BYTES", np.bool_: "BOOL"}
        if name == "scores" and not np.isfinite(value).all():
            continue
        cases.add({"step": "parse", "path": f"data.1.{name}", "datatype": names[target], "inputs": {"json": "json"}},
                  {"json": texts([document])}, {"value": array})
    singles = [float(value) for value in rng.random(rows)]
    cases.add({"step": "parse", "path": "v", "datatype": "FP32"}, {"json": texts([json.dumps({"v": value}) for value in singles])},
              {"value": np.array(singles, np.float32)})
