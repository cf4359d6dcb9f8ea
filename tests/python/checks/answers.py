"""Inference that succeeds: datatypes, JSON and binary tensors, typed and raw contents, ids, outputs."""

import itertools
import json

import ml_dtypes
import numpy as np
from tritonclient.grpc import service_pb2

from .registry import HTTP_KINDS, KINDS, check, decode, equal


def _integers(dtype):
    limits = np.iinfo(dtype)
    return np.array([[limits.min, 0, 1], [limits.max, 7, limits.max - 1]], dtype=dtype)


def _floats(dtype):
    limits = ml_dtypes.finfo(dtype)
    rows = [[0.1, -0.0, limits.max], [-limits.max, limits.smallest_subnormal, 1.5]]
    return np.array(rows, dtype=dtype)


def _objects(rows):
    return np.array(rows, dtype=np.object_)


# Two rows each; at least the ends of every range.
TENSORS = {
    "BOOL": np.array([[True, False, True], [False, False, True]]),
    **{name.upper(): _integers(name) for name in ("int8", "int16", "int32", "int64")},
    **{name.upper(): _integers(name) for name in ("uint8", "uint16", "uint32", "uint64")},
    "FP16": _floats(np.float16),
    "BF16": _floats(ml_dtypes.bfloat16),
    "FP32": _floats(np.float32),
    "FP64": _floats(np.float64),
    "BYTES": _objects([[b"", b"one", b'"quoted"\\\n\t'], ["na\u00efve \u2603".encode(), b"\0", b"x" * 5000]]),
}
JSON_TENSORS = {name: array for name, array in TENSORS.items() if name not in ("FP16", "BF16")}
# The field of `InferTensorContents`; FP16 and BF16 travel raw only.
CONTENTS = {
    "BOOL": "bool_contents",
    "INT8": "int_contents",
    "INT16": "int_contents",
    "INT32": "int_contents",
    "INT64": "int64_contents",
    "UINT8": "uint_contents",
    "UINT16": "uint_contents",
    "UINT32": "uint_contents",
    "UINT64": "uint64_contents",
    "FP32": "fp32_contents",
    "FP64": "fp64_contents",
    "BYTES": "bytes_contents",
}
LEFT = np.arange(16, dtype=np.int32).reshape(1, 16) * 1000
RIGHT = np.full((1, 16), 7, dtype=np.int32)


def as_sent(name, array):
    """tritonclient's result for the same tensor: JSON strings come back as `str`."""
    return array if name != "BYTES" else _objects([[text.decode() for text in row] for row in array])


def echo(client, model, datatype, array, binary=True):
    tensor = client.tensor("INPUT0", datatype, array, binary)
    result = client.infer(model, [tensor], outputs=[client.output("OUTPUT0", binary)])
    return result.as_numpy("OUTPUT0")


@check(TENSORS.keys(), KINDS.keys())
def binary_echo(server, datatype, kind):
    array = TENSORS[datatype]
    with server.client(kind) as client:
        equal(echo(client, f"identity_{datatype.lower()}", datatype, array), array)


@check(JSON_TENSORS.keys(), HTTP_KINDS)
def json_echo(server, datatype, kind):
    array = JSON_TENSORS[datatype]
    with server.client(kind) as client:
        got = echo(client, f"identity_{datatype.lower()}", datatype, array, binary=False)
        equal(got, as_sent(datatype, array))


@check(KINDS.keys())
def bytes_that_are_not_text(server, kind):
    array = _objects([[b"\xff\xfe\x00\x80", b"", bytes(range(256))]])
    with server.client(kind) as client:
        equal(echo(client, "identity_bytes", "BYTES", array), array)


@check(("FP16", "BF16", "FP32", "FP64"), KINDS.keys())
def nan_and_infinity_keep_their_bits(server, datatype, kind):
    dtype = TENSORS[datatype].dtype
    array = np.array([[np.nan, np.inf, -np.inf]], dtype=np.float32).astype(dtype)
    with server.client(kind) as client:
        equal(echo(client, f"identity_{datatype.lower()}", datatype, array), array)


@check(KINDS.keys())
def no_elements(server, kind):
    array = np.empty((1, 0), dtype=np.float32)
    with server.client(kind) as client:
        equal(echo(client, "identity_fp32", "FP32", array), array)


@check(KINDS.keys())
def a_tensor_of_4_mib(server, kind):
    array = np.arange(1 << 20, dtype=np.float32).reshape(1, -1)
    with server.client(kind) as client:
        equal(echo(client, "identity_fp32", "FP32", array), array)


@check(KINDS.keys())
def no_batch_axis(server, kind):
    array = np.array([1, 2, 3, 4], dtype=np.float32)
    with server.client(kind) as client:
        equal(echo(client, "identity_nobatch", "FP32", array), array)


@check(KINDS.keys())
def all_rows_of_a_full_batch(server, kind):
    array = np.arange(8 * 5, dtype=np.float32).reshape(8, 5)
    with server.client(kind) as client:
        equal(echo(client, "identity_fp32", "FP32", array), array)


@check([*itertools.product(KINDS, ("binary",)), *itertools.product(HTTP_KINDS, ("json",))])
def add_and_subtract(server, row):
    kind, binary = row[0], row[1] == "binary"
    with server.client(kind) as client:
        tensors = [
            client.tensor("INPUT0", "INT32", LEFT, binary),
            client.tensor("INPUT1", "INT32", RIGHT, binary),
        ]
        result = client.infer("addsub", tensors, model_version="1")
        equal(result.as_numpy("OUTPUT0"), LEFT + RIGHT, "sum")
        equal(result.as_numpy("OUTPUT1"), LEFT - RIGHT, "difference")
        response = client.response(result)
        equal((response["model_name"], response["model_version"]), ("addsub", "1"))


@check(KINDS.keys())
def inputs_in_any_order(server, kind):
    with server.client(kind) as client:
        tensors = [client.tensor("INPUT1", "INT32", RIGHT), client.tensor("INPUT0", "INT32", LEFT)]
        equal(client.infer("addsub", tensors).as_numpy("OUTPUT1"), LEFT - RIGHT)


@check(KINDS.keys())
def some_of_the_outputs(server, kind):
    with server.client(kind) as client:
        tensors = [client.tensor("INPUT0", "INT32", LEFT), client.tensor("INPUT1", "INT32", RIGHT)]
        result = client.infer("addsub", tensors, outputs=[client.output("OUTPUT1")])
        equal(result.as_numpy("OUTPUT1"), LEFT - RIGHT)
        equal([output["name"] for output in client.response(result)["outputs"]], ["OUTPUT1"])


@check(KINDS.keys())
def the_id_comes_back(server, kind):
    array = np.ones((1, 1), dtype=np.float32)
    with server.client(kind) as client:
        for name in ("", "42", 'a "quoted" \u00efd'):
            result = client.infer("identity_fp32", [client.tensor("INPUT0", "FP32", array)], request_id=name)
            equal(client.response(result).get("id", ""), name, "id")


@check(KINDS.keys())
def parameters_are_accepted(server, kind):
    array = np.ones((1, 1), dtype=np.float32)
    parameters = {"text": "a", "truth": True, "count": -3, "share": 0.5}
    with server.client(kind) as client:
        tensor = client.tensor("INPUT0", "FP32", array)
        result = client.infer("identity_fp32", [tensor], parameters=parameters)
        equal(result.as_numpy("OUTPUT0"), array)


@check(HTTP_KINDS, ["".join(letters) for letters in itertools.product("jb", repeat=4)])
def json_and_binary_mixed(server, kind, letters):
    """Two inputs and two outputs, each as JSON (j) or as binary data (b)."""
    binary = [letter == "b" for letter in letters]
    first = np.array([[0.5, -2.25]], dtype=np.float32)
    second = np.array([[1, -2, 3]], dtype=np.int32)
    with server.client(kind) as client:
        tensors = [
            client.tensor("INPUT0", "FP32", first, binary[0]),
            client.tensor("INPUT1", "INT32", second, binary[1]),
        ]
        outputs = [client.output("OUTPUT0", binary[2]), client.output("OUTPUT1", binary[3])]
        result = client.infer("identity_two", tensors, outputs=outputs)
        equal(result.as_numpy("OUTPUT0"), first)
        equal(result.as_numpy("OUTPUT1"), second)
        sizes = ["binary_data_size" in o.get("parameters", {}) for o in client.response(result)["outputs"]]
        equal(sizes, binary[2:], "binary outputs")


def one(datatype, shape, values, **more):
    return {"name": "INPUT0", "datatype": datatype, "shape": shape, "data": values, **more}


@check()
def json_body_to_the_letter(server):
    request = {"id": "7", "inputs": [one("FP32", [1, 1], [0.1])]}
    _, _, body = server.infer("identity_fp32", request)
    output = '{"name":"OUTPUT0","datatype":"FP32","shape":[1,1],"data":[0.1]}'
    want = f'{{"id":"7","model_name":"identity_fp32","model_version":"1","outputs":[{output}]}}'
    equal(body.decode(), want)


@check({"flat": [1, 2, 3, 4], "nested": [[1, 2], [3, 4]], "odd": [[[1], [2, 3]], 4]})
def json_layout(server, values):
    request = {"inputs": [one("INT32", [2, 2], values)]}
    answer, _ = decode(server.infer("identity_int32", request))
    equal(answer["outputs"][0]["data"], [1, 2, 3, 4])


@check()
def json_nan_and_infinity(server):
    request = {"inputs": [one("FP32", [1, 3], [float("nan"), float("inf"), float("-inf")])]}
    answer, _ = decode(server.infer("identity_fp32", request))
    equal([str(value) for value in answer["outputs"][0]["data"]], ["nan", "inf", "-inf"])


@check()
def json_escapes_and_surrogates(server):
    body = rb'{"inputs":[{"name":"INPUT0","datatype":"BYTES","shape":[1,2],"data":["\u00e9\ud83d\ude00","\/\b"]}]}'
    answer, _ = decode(server.infer("identity_bytes", body))
    equal(answer["outputs"][0]["data"], ["\u00e9\U0001f600", "/\b"])


@check()
def binary_data_output_is_the_default(server):
    request = {
        "parameters": {"binary_data_output": True},
        "inputs": [one("FP32", [1, 1], [0.5]), {**one("INT32", [1, 1], [3]), "name": "INPUT1"}],
        "outputs": [{"name": "OUTPUT0"}, {"name": "OUTPUT1", "parameters": {"binary_data": False}}],
    }
    answer, tail = decode(server.infer("identity_two", request))
    by_name = {output["name"]: output for output in answer["outputs"]}
    equal(by_name["OUTPUT0"]["parameters"], {"binary_data_size": 4})
    equal(by_name["OUTPUT1"]["data"], [3])
    equal(tail, np.float32(0.5).tobytes())


@check(
    {
        "fixed": ("identity_raw", [1, 4]),
        "variable": ("identity_fp32", [1, 4]),
        "no_batch": ("identity_nobatch", [4]),
    }
)
def raw_binary_request(server, row):
    model, shape = row
    body = np.array([1, -2, 0.5, 4], dtype=np.float32).tobytes()
    answer, tail = decode(server.raw(model, body))
    want = {
        "name": "OUTPUT0",
        "datatype": "FP32",
        "shape": shape,
        "parameters": {"binary_data_size": 16},
    }
    equal(answer, {"model_name": model, "model_version": "1", "outputs": [want]})
    equal(tail, body)


@check()
def raw_binary_request_on_a_kept_connection(server):
    with server.client("http") as client:
        array = np.ones((1, 4), dtype=np.float32)
        for _ in range(3):
            equal(echo(client, "identity_raw", "FP32", array), array)
            equal(decode(server.raw("identity_raw", array.tobytes()))[1], array.tobytes())


def _length_prefixed(array):
    return b"".join(len(text).to_bytes(4, "little") + text for text in array.flatten())


@check(CONTENTS.keys())
def typed_and_raw_contents(server, datatype):
    array = TENSORS[datatype]
    raw = _length_prefixed(array) if datatype == "BYTES" else array.tobytes()

    def request():
        message = service_pb2.ModelInferRequest(model_name=f"identity_{datatype.lower()}", id="7")
        message.inputs.add(name="INPUT0", datatype=datatype, shape=array.shape)
        return message

    typed, untyped = request(), request()
    getattr(typed.inputs[0].contents, CONTENTS[datatype]).extend(array.flatten().tolist())
    untyped.raw_input_contents.append(raw)
    answers = [server.stub().ModelInfer(message, timeout=30) for message in (typed, untyped)]
    equal(answers[0], answers[1], "typed and raw")
    equal(list(answers[0].raw_output_contents), [raw])
    equal(list(answers[0].outputs[0].shape), list(array.shape))
    assert not answers[0].outputs[0].HasField("contents"), "outputs travel raw"


@check()
def http_and_grpc_agree(server):
    with server.client("http") as first, server.client("grpc") as second:
        array = np.linspace(-1, 1, 24, dtype=np.float32).reshape(3, 8)
        equal(
            echo(first, "identity_fp32", "FP32", array).tobytes(),
            echo(second, "identity_fp32", "FP32", array).tobytes(),
        )


@check()
def chunked_request(server):
    body = json.dumps({"inputs": [one("INT32", [1, 3], [1, 2, 3])]}).encode()
    parts = iter([body[:10], body[10:11], body[11:]])  # of no known length: sent in chunks
    path = "/v2/models/identity_int32/infer"
    answer, _ = decode(server.request("POST", path, parts))
    equal(answer["outputs"][0]["data"], [1, 2, 3])
