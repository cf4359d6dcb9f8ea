"""Holds what a server answers through ONNX Runtime against ONNX Runtime in Python.

    python check.py write REPOSITORY     writes the models
    python check.py check HOST:PORT      asks the server, and ONNX Runtime, and compares

Prints `ok NAME` for each model, exits 1 otherwise.
"""

import os
import sys

os.environ["no_proxy"] = os.environ["NO_PROXY"] = "*"

import numpy
import onnx
import onnxruntime
import tritonclient.http as triton
from onnx import TensorProto, helper

NAMES = {
    "bool": "BOOL", "int8": "INT8", "int16": "INT16", "int32": "INT32", "int64": "INT64", "uint8": "UINT8",
    "uint16": "UINT16", "uint32": "UINT32", "uint64": "UINT64", "float16": "FP16", "float32": "FP32",
    "float64": "FP64", "object": "BYTES",
}


def model(nodes, inputs, outputs, initializers=(), opsets=(("", 20),)):
    graph = helper.make_graph(
        nodes, "g",
        [helper.make_tensor_value_info(*value) for value in inputs],
        [helper.make_tensor_value_info(*value) if isinstance(value, tuple) else value for value in outputs],
        initializer=list(initializers),
    )
    opsets = [helper.make_opsetid(domain, version) for domain, version in opsets]
    return helper.make_model(graph, opset_imports=opsets, ir_version=9).SerializeToString()


def runs(file):
    try:
        onnxruntime.InferenceSession(file, providers=["CPUExecutionProvider"])
        return True
    except Exception:
        return False


def addsub(dtype):
    """Sum and difference, or what comes nearest where the library has no kernel for them."""
    kind = helper.np_dtype_to_tensor_dtype(numpy.dtype(dtype))
    inputs = [("INPUT0", kind, ["N", 16]), ("INPUT1", kind, ["N", 16])]
    outputs = [("OUTPUT0", kind, ["N", 16]), ("OUTPUT1", kind, ["N", 16])]
    pairs = {"bool": [("And", "Or")], "object": [("StringConcat", "Identity")]}.get(str(dtype), [("Add", "Sub")])
    for first, second in [*pairs, ("Identity", "Identity")]:
        feeds = lambda operator: ["INPUT0", "INPUT1"] if operator != "Identity" else ["INPUT1"]
        nodes = [helper.make_node(first, feeds(first), ["OUTPUT0"]), helper.make_node(second, feeds(second), ["OUTPUT1"])]
        file = model(nodes, inputs, outputs)
        if runs(file):
            return file
    raise AssertionError(dtype)


def tree():
    """A regression tree: 10 below 0.5 in the first feature, else 20; a domain that the embedded engine lacks."""
    node = helper.make_node(
        "TreeEnsembleRegressor", ["x"], ["y"], domain="ai.onnx.ml", n_targets=1,
        nodes_treeids=[0, 0, 0], nodes_nodeids=[0, 1, 2], nodes_featureids=[0, 0, 0],
        nodes_values=[0.5, 0.0, 0.0], nodes_modes=["BRANCH_LEQ", "LEAF", "LEAF"],
        nodes_truenodeids=[1, 0, 0], nodes_falsenodeids=[2, 0, 0],
        target_treeids=[0, 0], target_nodeids=[1, 2], target_ids=[0, 0], target_weights=[10.0, 20.0],
    )
    inputs, outputs = [("x", TensorProto.FLOAT, ["N", 3])], [("y", TensorProto.FLOAT, ["N", 1])]
    return model([node], inputs, outputs, opsets=(("", 20), ("ai.onnx.ml", 3)))


def lrn():
    node = helper.make_node("LRN", ["x"], ["y"], size=3)
    shape = ["N", 4, 5, 5]
    return model([node], [("x", TensorProto.FLOAT, shape)], [("y", TensorProto.FLOAT, shape)])


def sequence():
    """Two tensors in a sequence, which no tensor can carry, beside an output that is one."""
    nodes = [helper.make_node("SequenceConstruct", ["x", "x"], ["z"]), helper.make_node("Relu", ["x"], ["y"])]
    element = helper.make_tensor_type_proto(TensorProto.FLOAT, ["N", 2])
    output = helper.make_value_info("z", helper.make_sequence_type_proto(element))
    return model(nodes, [("x", TensorProto.FLOAT, ["N", 2])], [("y", TensorProto.FLOAT, ["N", 2]), output])


def silero():
    import importlib.util

    folder = importlib.util.find_spec("silero_vad").submodule_search_locations[0]
    with open(os.path.join(folder, "data", "silero_vad.onnx"), "rb") as file:
        return file.read()


DTYPES = ["bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64", "float16", "float32", "float64",
          "object"]
MODELS = {f"addsub_{dtype}": (lambda dtype=dtype: addsub(dtype)) for dtype in DTYPES}
MODELS |= {"tree": tree, "lrn": lrn, "silero": silero}


def write(repository):
    for name, make in (MODELS | {"sequence": sequence}).items():
        folder = os.path.join(repository, name, "1")
        os.makedirs(folder)
        with open(os.path.join(folder, "model.onnx"), "wb") as file:
            file.write(make())


def values(dtype, shape, random):
    if dtype == "object":
        words = [b"", b"one", "zwölf".encode(), b"a b", b"x" * 300]
        return numpy.array(random.choice(numpy.array(words, dtype=object), shape), dtype=object)
    if dtype == "bool":
        return random.integers(0, 2, shape).astype(bool)
    if dtype.startswith("float"):
        return random.standard_normal(shape).astype(dtype)
    limits = numpy.iinfo(dtype)
    return random.integers(limits.min, limits.max, shape, dtype=dtype, endpoint=True)


def feeds(name, rows, random):
    if name == "silero":
        state = random.standard_normal((2, 1, 128), dtype=numpy.float32)
        sound = random.standard_normal((1, 512), dtype=numpy.float32) * numpy.float32(0.1)
        return {"input": sound, "state": state, "sr": numpy.array([16000])}
    if name == "tree":
        return {"x": random.random((rows, 3), dtype=numpy.float32)}
    if name == "lrn":
        return {"x": random.standard_normal((rows, 4, 5, 5), dtype=numpy.float32)}
    dtype = name.removeprefix("addsub_")
    return {feed: values(dtype, (rows, 16), random) for feed in ("INPUT0", "INPUT1")}


def ask(client, name, feeds, is_binary):
    inputs = []
    for feed, value in feeds.items():
        tensor = triton.InferInput(feed, list(value.shape), NAMES[str(value.dtype)])
        tensor.set_data_from_numpy(value, binary_data=is_binary)
        inputs.append(tensor)
    answer = client.infer(name, inputs)
    return {output["name"]: answer.as_numpy(output["name"]) for output in answer.get_response()["outputs"]}


def check_model(client, name):
    random = numpy.random.default_rng(len(name))
    session = onnxruntime.InferenceSession(MODELS[name](), providers=["CPUExecutionProvider"])
    for rows, is_binary in ((1, True), (3, True), (2, False)):
        feed = feeds(name, rows, random)
        # A scalar is one element to the server.
        direct = dict(feed, sr=feed["sr"].reshape(())) if name == "silero" else feed
        if name == "addsub_object":
            direct = {key: numpy.array([[text.decode() for text in row] for row in feed[key]], dtype=object) for key in feed}
        names = [output.name for output in session.get_outputs()]
        want = dict(zip(names, session.run(names, direct)))
        # FP16 has no JSON form.
        got = ask(client, name, feed, is_binary or "float16" in name)
        assert got.keys() == want.keys(), (got.keys(), want.keys())
        for key, value in want.items():
            if value.dtype == object:
                value = numpy.array([[text.encode() for text in row] for row in value], dtype=object)
            assert got[key].shape == value.shape, (key, got[key].shape, value.shape)
            assert got[key].dtype == value.dtype, (key, got[key].dtype, value.dtype)
            assert numpy.array_equal(got[key], value), (key, rows, got[key], value)


def check(address):
    client = triton.InferenceServerClient(address, network_timeout=120, connection_timeout=120)
    failed = 0
    for name in MODELS:
        try:
            check_model(client, name)
            print("ok", name)
        except Exception as error:  # the next check shall run too
            failed += 1
            print(f"FAILED {name}: {error!r}")
    sys.exit(failed > 0)


if __name__ == "__main__":
    {"write": write, "check": check}[sys.argv[1]](sys.argv[2])
