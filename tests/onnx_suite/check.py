"""Runs the backend test suite of the `onnx` package through a server, without any configuration of its models.

    python check.py write REPOSITORY     writes the suite's models
    python check.py embedded HOST:PORT      asks a server with the embedded engine, and compares with the suite's outputs
    python check.py onnxruntime HOST:PORT   the same of one with ONNX Runtime

Prints a line `WORD NAME: WHY` for each case that is not right, then a line of counts. The words: `refused` (at load),
`failed` (at a request), `wrong`, `left out` (a sequence, a map or a missing optional value goes over no wire, and random
numbers cannot be compared) and `theirs`: what is not the suite's is what ONNX Runtime in Python says, too.
"""

import collections
import concurrent.futures
import http.client
import itertools
import json
import os
import re
import struct
import sys
import threading
import time
import types
import warnings

import ml_dtypes
import numpy
import onnx
import onnx.backend.test
import onnxruntime
from onnx import numpy_helper
from onnx.backend.test.loader import load_model_tests

warnings.simplefilter("ignore")

LIGHT = os.path.join(os.path.dirname(onnx.backend.test.__file__), "data")
# Models that are loaded at a time. All of them at once would need 4,000 threads, as many as a container may have.
PART = 250
KINDS = ["node", "simple", "pytorch-converted", "pytorch-operator", "real"]
DATATYPES = {
    "bool": "BOOL", "int8": "INT8", "int16": "INT16", "int32": "INT32", "int64": "INT64", "uint8": "UINT8",
    "uint16": "UINT16", "uint32": "UINT32", "uint64": "UINT64", "float16": "FP16", "float32": "FP32",
    "float64": "FP64", "bfloat16": "BF16", "object": "BYTES",
}
NUMPY = {name: numpy.dtype(ml_dtypes.bfloat16 if dtype == "bfloat16" else dtype) for dtype, name in DATATYPES.items()}


FUSED = {
    # Operators that ONNX Runtime's optimizer writes: the lengths of their inputs beside the first, attributes.
    "BiasGelu": (["row"], {}),
    "FastGelu": (["row"], {}),
    "Gelu": ([], {}),
    "QuickGelu": ([], {"alpha": 1.5}),
    "SimplifiedLayerNormalization": (["row"], {"epsilon": 1e-5, "axis": -1, "stash_type": 1}),
    "SkipLayerNormalization": (["all", "row", "row", "row"], {"epsilon": 1e-5}),
    "SkipSimplifiedLayerNormalization": (["all", "row", "row"], {"epsilon": 1e-5}),
}


def fused():
    """Cases of operators that are not in the suite; what is right is what ONNX Runtime in Python says."""
    random = numpy.random.default_rng(17)
    for name, (more, attributes) in FUSED.items():
        shapes = [[2, 3, 8]] + [[8] if word == "row" else [2, 3, 8] for word in more]
        feeds = [random.standard_normal(shape).astype(numpy.float32) for shape in shapes]
        names = [f"x{index}" for index in range(len(shapes))]
        domain = "" if name == "SimplifiedLayerNormalization" else "com.microsoft"
        node = onnx.helper.make_node(name, names, ["y"], domain=domain, **attributes)
        inputs = [onnx.helper.make_tensor_value_info(name, 1, shape) for name, shape in zip(names, shapes)]
        graph = onnx.helper.make_graph([node], "g", inputs, [onnx.helper.make_tensor_value_info("y", 1, shapes[0])])
        opsets = [onnx.helper.make_opsetid("", 17), onnx.helper.make_opsetid("com.microsoft", 1)]
        model = onnx.helper.make_model(graph, opset_imports=opsets, ir_version=9)
        case = types.SimpleNamespace(name=f"fused_{name}", rtol=1e-3, atol=1e-6)
        data_sets = [(feeds, [library(model, names, feeds)["y"]])]
        yield case, model, lambda data_sets=data_sets: data_sets


def cases():
    """Name, model and data sets of each case; the data sets of models on disk are read when asked for."""
    yield from fused()
    for kind in KINDS:
        for case in load_model_tests(kind=kind):
            if case.model is not None:
                yield case, case.model, lambda case=case: case.data_sets
            elif case.model_dir:
                model = onnx.load(os.path.join(case.model_dir, "model.onnx"))
                yield case, model, lambda case=case, model=model: stored(case.model_dir, model)
            elif case.url.startswith("onnx/backend/test/data/light/"):
                path = os.path.join(LIGHT, "light", os.path.basename(case.url))
                model = onnx.load(path)
                yield case, model, lambda path=path, model=model: light(path, model)


def read(path, kind):
    with open(path, "rb") as file:
        content = file.read()
    if kind != "tensor_type":
        return None
    tensor = onnx.TensorProto()
    tensor.ParseFromString(content)
    return numpy_helper.to_array(tensor)


def stored(folder, model):
    sets = []
    for name in sorted(os.listdir(folder)):
        if name.startswith("test_data_set"):
            side = lambda word, values: [
                read(os.path.join(folder, name, f"{word}_{index}.pb"), value.type.WhichOneof("value"))
                for index, value in enumerate(values)
                if os.path.exists(os.path.join(folder, name, f"{word}_{index}.pb"))
            ]
            sets.append((side("input", model.graph.input), side("output", model.graph.output)))
    return sets


def light(path, model):
    """The suite's dummy data: rising from 0 to 1."""
    weights = {tensor.name for tensor in model.graph.initializer}
    feeds = []
    for value in model.graph.input:
        if value.name not in weights:
            shape = [dim.dim_value if dim.HasField("dim_value") else 1 for dim in value.type.tensor_type.shape.dim]
            size = numpy.prod(shape)
            feeds.append((numpy.arange(size).reshape(shape) / size).astype(numpy.float32))
    return [(feeds, [read(path.replace(".onnx", "_output_0.pb"), "tensor_type")])]


def write(repository):
    for case, model, _ in cases():
        folder = os.path.join(repository, case.name, "1")
        os.makedirs(folder)
        with open(os.path.join(folder, "model.onnx"), "wb") as file:
            file.write(model.SerializeToString())


def encode(value):
    if value.dtype != object and value.dtype.kind not in "US":
        return numpy.ascontiguousarray(value).tobytes()
    texts = [text.encode() if isinstance(text, str) else bytes(text) for text in value.flatten()]
    return b"".join(struct.pack("<I", len(text)) + text for text in texts)


def decode(content, output):
    dtype = NUMPY[output["datatype"]]
    if dtype != object:
        return numpy.frombuffer(content, dtype).reshape(output["shape"])
    texts = []
    while content:
        (size,) = struct.unpack_from("<I", content)
        texts.append(content[4:4 + size].decode())
        content = content[4 + size:]
    return numpy.array(texts, dtype=object).reshape(output["shape"])


class Client:
    """Binary tensors over HTTP, a connection for each thread."""

    def __init__(self, address):
        self.address = address
        self.threads = threading.local()

    def post(self, path, body, headers={}):
        # A connection that has rested for long may be closed by the server at any moment.
        now = time.monotonic()
        if now - getattr(self.threads, "used", 0) > 30 or not hasattr(self.threads, "connection"):
            self.threads.connection = http.client.HTTPConnection(self.address, timeout=300)
        connection = self.threads.connection
        try:
            connection.request("POST", path, body, headers)
            answer = connection.getresponse()
            body = answer.read()
            self.threads.used = time.monotonic()
            return answer.status, answer.headers, body
        except Exception:
            connection.close()
            raise

    def infer(self, model, feeds):
        inputs, tail = [], b""
        for name, value in feeds.items():
            content = encode(value)
            # A configuration has no scalar: one element.
            inputs.append({
                "name": name, "shape": list(value.shape) or [1], "datatype": datatype(value),
                "parameters": {"binary_data_size": len(content)},
            })
            tail += content
        head = json.dumps({"inputs": inputs, "parameters": {"binary_data_output": True}}).encode()
        headers = {"Inference-Header-Content-Length": str(len(head))}
        status, headers, body = self.post(f"/v2/models/{model}/infer", head + tail, headers)
        if status != 200:
            raise Failed(json.loads(body)["error"])
        size = int(headers.get("Inference-Header-Content-Length", len(body)))
        head, tail, outputs = json.loads(body[:size]), body[size:], {}
        for output in head["outputs"]:
            size = output["parameters"]["binary_data_size"]
            outputs[output["name"]], tail = decode(tail[:size], output), tail[size:]
        return outputs


class Failed(Exception):
    """The server refused a request."""


def datatype(value):
    return DATATYPES["object" if value.dtype.kind in "USO" else str(value.dtype)]


def is_carried(value):
    return isinstance(value, numpy.ndarray) and (value.dtype.kind in "US" or str(value.dtype) in DATATYPES)


def difference(case, name, got, want):
    if got.dtype != want.dtype and not (got.dtype == object and want.dtype.kind in "USO"):
        return f"{name} is {got.dtype}, not {want.dtype}"
    if got.shape != (want.shape or (1,)):
        return f"{name} has the shape {got.shape}, not {want.shape}"
    got = got.reshape(want.shape)
    if want.dtype.kind in "USO":
        return None if numpy.array_equal(got, want.astype(object)) else f"{name} is {got}, not {want}"
    rtol = case.rtol
    if str(want.dtype) == "bfloat16":
        # As the suite itself: two steps.
        rtol, got, want = max(rtol, 2**-6), got.astype(numpy.float32), want.astype(numpy.float32)
    try:
        numpy.testing.assert_allclose(got, want, rtol=rtol, atol=case.atol)
    except AssertionError as error:
        return f"{name}: " + " ".join(str(error).split())
    return None


def library(model, names, feeds):
    """The outputs of ONNX Runtime in Python, by name; the error if it fails."""
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    try:
        session = onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
        outputs = [output.name for output in session.get_outputs()]
        return dict(zip(outputs, session.run(outputs, dict(zip(names, feeds)))))
    except Exception as error:
        return error


def run(client, states, case, model, data_sets, is_library):
    """The word of a case and why."""
    state, reason = states[case.name]
    if state != "READY":
        return "refused", reason
    weights = {tensor.name for tensor in model.graph.initializer}
    names = [value.name for value in model.graph.input]
    outputs = [value.name for value in model.graph.output]
    for feeds, wants in data_sets():
        if len(feeds) < len(names):
            names = [name for name in names if name not in weights]
        as_array = lambda value: value if value is None or isinstance(value, (list, tuple, dict)) else (
            numpy_helper.to_array(value) if isinstance(value, onnx.TensorProto) else numpy.asarray(value))
        feeds, wants = [as_array(value) for value in feeds], [as_array(value) for value in wants]
        if not all(map(is_carried, feeds + wants)):
            return "left out", "it has values that no tensor of the protocol holds"
        if case.name.startswith("test_training_dropout") and "zero_ratio" not in case.name:
            return "left out", "its numbers are random"
        try:
            got = client.infer(case.name, dict(zip(names, feeds)))
        except Failed as error:
            is_theirs = is_library and isinstance(library(model, names, feeds), Exception)
            return "theirs" if is_theirs else "failed", str(error)
        for name, want in zip(outputs, wants):
            why = difference(case, name, got[name], want) if name in got else f"no output {name}"
            if why:
                theirs = library(model, names, feeds) if is_library else None
                is_theirs = isinstance(theirs, dict) and numpy.array_equal(got[name], theirs[name], equal_nan=True)
                return "theirs" if is_theirs else "wrong", why
    return "right", ""


def check(address, is_library):
    client = Client(address)
    counts = collections.Counter(right=0, refused=0, failed=0, wrong=0)
    left = cases()
    with concurrent.futures.ThreadPoolExecutor(4) as pool:
        control = lambda verb, part: list(pool.map(lambda case: client.post(f"/v2/repository/models/{case[0].name}/{verb}", b""), part))
        while part := list(itertools.islice(left, PART)):
            control("load", part)
            _, _, body = client.post("/v2/repository/index", b"{}")
            states = {entry["name"]: (entry.get("state"), entry.get("reason", "")) for entry in json.loads(body)}
            ask = lambda case: (case[0].name, run(client, states, *case, is_library))
            for name, (word, why) in pool.map(ask, part):
                # Of the suite only.
                counts[word] += not name.startswith("fused_") or word != "right"
                if word != "right":
                    print(f"{word} {name}: {re.sub(chr(10), ' ', why)}")
            control("unload", part)
    print(", ".join(f"{count} {word}" for word, count in counts.items()))


if __name__ == "__main__":
    if sys.argv[1] == "write":
        write(sys.argv[2])
    else:
        check(sys.argv[2], sys.argv[1] == "onnxruntime")
