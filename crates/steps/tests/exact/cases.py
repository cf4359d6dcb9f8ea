"""Writes cases for `cases.rs`: a list of steps, tensors that go in, and the tensors that a library made of them."""

import json
import struct

import numpy as np

DATATYPES = {
    "bool": "BOOL", "uint8": "UINT8", "uint16": "UINT16", "uint32": "UINT32", "uint64": "UINT64",
    "int8": "INT8", "int16": "INT16", "int32": "INT32", "int64": "INT64",
    "float16": "FP16", "float32": "FP32", "float64": "FP64", "object": "BYTES",
}


def texts(values):
    """A tensor of strings; `values` are nested lists of str or bytes."""
    return np.array(values, dtype=object)


class Cases:
    def __init__(self, folder, name):
        self.file = open(f"{folder}/{name}", "wb")

    def part(self, data):
        data = data.encode() if isinstance(data, str) else data
        self.file.write(struct.pack("<I", len(data)) + data)

    def tensor(self, name, array, relative=0.0, absolute=0.0):
        array = np.asarray(array)
        self.part(name)
        self.part(DATATYPES[array.dtype.name])
        self.part(struct.pack(f"<{array.ndim}q", *array.shape))
        if array.dtype == object:
            encoded = [value.encode() if isinstance(value, str) else value for value in array.ravel()]
            self.part(b"".join(struct.pack("<I", len(value)) + value for value in encoded))
        else:
            self.part(np.ascontiguousarray(array).tobytes())
        self.part(struct.pack("<dd", relative, absolute))

    def add(self, steps, inputs, outputs, files=()):
        """`outputs` are arrays, which must be equal bit by bit, or `(array, relative, absolute)`. Names of outputs are those of
        tensors in the list; a single step writes its ports under their own names and reads inputs likewise."""
        if isinstance(steps, dict):
            step = {"outputs": {name: f"out_{name}" for name in outputs}, **steps}
            if "inputs" not in step:
                step["inputs"] = {name: name for name in inputs}
            outputs = {f"out_{name}": value for name, value in outputs.items()}
            steps = [step]
        self.part(json.dumps({"steps": steps}))
        self.part(struct.pack("<III", len(inputs), len(outputs), len(files)))
        for name, array in inputs.items():
            self.tensor(name, array)
        for name, want in outputs.items():
            self.tensor(name, *want) if isinstance(want, tuple) else self.tensor(name, want)
        for name, contents in dict(files).items():
            self.part(name)
            self.part(contents)
