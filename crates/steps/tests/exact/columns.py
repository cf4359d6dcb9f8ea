"""Arithmetic and shapes of columns, in numpy."""

import sys

import numpy as np

from cases import Cases

rng = np.random.default_rng(9)
cases = Cases(sys.argv[1], "cases")
count = 4_000 if sys.argv[2] == "whole" else 200
NUMBERS = [np.bool_, np.uint8, np.uint16, np.uint32, np.uint64, np.int8, np.int16, np.int32, np.int64, np.float16, np.float32, np.float64]
NAMES = {np.bool_: "BOOL", np.float16: "FP16", np.float32: "FP32", np.float64: "FP64"}


def numbers(shape, datatype):
    if datatype is np.bool_:
        return rng.random(shape) < 0.5
    if np.issubdtype(datatype, np.integer):
        info = np.iinfo(datatype)
        return rng.integers(info.min, info.max, shape, dtype=datatype, endpoint=True)
    return (rng.standard_normal(shape) * 10.0 ** rng.integers(-3, 3)).astype(datatype)


def shape(rank_min=1):
    return tuple(int(size) for size in rng.integers(0 if rng.random() < 0.05 else 1, 6, rng.integers(rank_min, 5)))


for _ in range(count):
    datatype = NUMBERS[rng.integers(len(NUMBERS))]
    x = numbers(shape(), datatype)
    rank = x.ndim
    # Stack and concat.
    others = [numbers(x.shape, datatype) for _ in range(rng.integers(0, 4))]
    named = {f"x{index}": array for index, array in enumerate([x, *others])}
    axis = int(rng.integers(-rank - 1, rank + 1))
    cases.add({"step": "stack", "axis": axis, "inputs": {"columns": list(named)}}, named, {"output": np.stack(list(named.values()), axis)})
    axis = int(rng.integers(-rank, rank))
    for name in named:
        size = list(x.shape)
        size[axis] = int(rng.integers(0, 5))
        named[name] = numbers(size, datatype)
    cases.add({"step": "concat", "axis": axis, "inputs": {"tensors": list(named)}}, named, {"output": np.concatenate(list(named.values()), axis)})
    # Select.
    if x.shape[axis]:
        indices = rng.integers(-x.shape[axis], x.shape[axis], rng.integers(1, 6)).tolist()
        cases.add({"step": "select", "axis": axis, "indices": indices}, {"input": x}, {"output": np.take(x, indices, axis)})
    # Shapes.
    order = rng.permutation(rank).tolist()
    cases.add({"step": "shape", "transpose": order}, {"input": x}, {"output": np.ascontiguousarray(x.transpose(order))})
    cases.add({"step": "shape", "transpose": []}, {"input": x}, {"output": np.ascontiguousarray(x.T)})
    cases.add({"step": "shape", "squeeze": []}, {"input": x}, {"output": x.squeeze()})
    ones = [int(axis) for axis, size in enumerate(x.shape) if size == 1][:1]
    if ones:
        cases.add({"step": "shape", "squeeze": ones}, {"input": x}, {"output": x.squeeze(tuple(ones))})
    axes = rng.permutation(rank + 2)[:2].tolist()
    cases.add({"step": "shape", "unsqueeze": axes}, {"input": x}, {"output": np.expand_dims(x, tuple(axes))})
    if x.size:
        flat = [x.shape[0], -1] if rng.random() < 0.5 else [-1]
        cases.add({"step": "shape", "reshape": flat}, {"input": x}, {"output": x.reshape(flat)})
    # Casts of values in range: beyond it, C and so numpy promise nothing.
    target = NUMBERS[rng.integers(len(NUMBERS))]
    name = NAMES.get(target, np.dtype(target).name.upper())
    y = x
    if np.issubdtype(datatype, np.floating) and np.issubdtype(target, np.integer):
        info = np.iinfo(target)
        y = np.clip(x.astype(np.float64), float(info.min) / 2, float(info.max) / 2).astype(datatype)
        y = y[np.isfinite(y)]
    with np.errstate(over="ignore"):
        cases.add({"step": "cast", "datatype": name}, {"input": y}, {"output": y.astype(target)})
    # Scale, with parameters as Python numbers, FP32 and FP64 arrays.
    x = numbers((int(rng.integers(1, 5)), int(rng.integers(1, 9))), datatype if rng.random() < 0.3 else np.float32)
    columns = x.shape[1]
    mean = np.round(rng.standard_normal(columns) * 3, 3) if rng.random() < 0.8 else np.array([0.485])
    deviation = np.round(rng.random(len(mean)) + 0.1, 3)
    mean32, deviation32, x32 = mean.astype(np.float32), deviation.astype(np.float32), x.astype(np.float32)
    standard = {"step": "scale", "subtract": mean.tolist(), "divide": deviation.tolist()}
    linear = {"step": "scale", "multiply": mean.tolist(), "add": deviation.tolist()}
    ranges = {"step": "scale", "minimum": mean.tolist(), "maximum": (mean + deviation).tolist(), "clip": [0.1, 0.7]}
    most, most32 = mean + deviation, (mean + deviation).astype(np.float32)
    cases.add(standard, {"input": x}, {"output": (x32 - mean32) / deviation32})
    cases.add(linear, {"input": x}, {"output": x32 * mean32 + deviation32})
    cases.add(ranges, {"input": x}, {"output": np.clip((x32 - mean32) / (most32 - mean32), 0.1, 0.7).astype(np.float32)})
    cases.add({"step": "scale", "subtract": [0.485], "divide": [0.229]}, {"input": x}, {"output": (x32 - 0.485) / 0.229})
    wide = x.astype(np.float64)
    for name, target in ("FP32", np.float32), ("FP64", np.float64):
        double = {"arithmetic": "float64", "datatype": name}
        cases.add({**standard, **double}, {"input": x}, {"output": ((wide - mean) / deviation).astype(target)})
        cases.add({**linear, **double}, {"input": x}, {"output": (wide * mean + deviation).astype(target)})
        cases.add({**ranges, **double}, {"input": x}, {"output": np.clip((wide - mean) / (most - mean), 0.1, 0.7).astype(target)})
    # As scikit-learn's scalers on an FP32 array.
    y = x32.copy()
    y -= mean
    y /= deviation
    cases.add({**standard, "arithmetic": "in_place"}, {"input": x}, {"output": y})
    y = x32.copy()
    y *= mean
    y += deviation
    cases.add({**linear, "arithmetic": "in_place"}, {"input": x}, {"output": y})

# Casts at the borders of rounding, and of large integers.
halves = np.arange(1 << 16, dtype=np.uint16).view(np.float16)
halves = halves[np.isfinite(halves)].astype(np.float64)
near = np.concatenate([halves, (halves[:-1] + halves[1:]) / 2, np.nextafter((halves[:-1] + halves[1:]) / 2, np.inf),
                       np.nextafter((halves[:-1] + halves[1:]) / 2, -np.inf), [np.inf, -np.inf, 65519.999, 65520, 1e-8, 3e-8]])
with np.errstate(over="ignore", under="ignore"):
    cases.add({"step": "cast", "datatype": "FP16"}, {"input": near}, {"output": near.astype(np.float16)})
    cases.add({"step": "cast", "datatype": "FP16"}, {"input": near.astype(np.float32)}, {"output": near.astype(np.float32).astype(np.float16)})
large = np.array([2**53 + 1, 2**62 + 3, -(2**63), 2**24 + 1, 0], np.int64)
for target, name in (np.float32, "FP32"), (np.float64, "FP64"), (np.uint64, "UINT64"), (np.int32, "INT32"), (np.float16, "FP16"):
    with np.errstate(over="ignore"):
        cases.add({"step": "cast", "datatype": name}, {"input": large}, {"output": large.astype(target)})
doubles = np.array([2.0**53 + 2, -(2.0**62), 1e15 + 0.5, -0.9, 123456789.9])
cases.add({"step": "cast", "datatype": "INT64"}, {"input": doubles}, {"output": doubles.astype(np.int64)})
