"""Wrong inference requests that both protocols refuse, each with one status and Triton's text."""

import json

import grpc
import numpy as np
from tritonclient.grpc import service_pb2

from .registry import CALL_SECONDS_MAX, KINDS, check, equal, fails

NO_ID = "[request id: <id_unknown>] "
BATCH_NOTE = (
    "NOTE: Setting a non-zero max_batch_size in the model config requires a batch dimension to be "
    "prepended to each input shape. If you want to specify the full shape including the batch dim "
    "in your input dims config, try setting max_batch_size to zero. See the model configuration "
    "docs for more info on max_batch_size."
)
ONES = np.ones(16, dtype=np.int32).tobytes()
HALVES = np.full(4, 0.5, dtype=np.float32).tobytes()


def tensor(name="INPUT0", datatype="INT32", shape=(1, 16), raw=ONES):
    return name, datatype, list(shape), raw


FIRST, SECOND = tensor(), tensor("INPUT1")


def fp32(shape=(1, 4), raw=HALVES):
    return tensor("INPUT0", "FP32", shape, raw)


def texts(shape, raw):
    return tensor("INPUT0", "BYTES", shape, raw)


# name: (model, inputs, outputs, text), refused as 400 / INVALID_ARGUMENT by both protocols.
WRONG = {
    "input unknown": (
        "addsub",
        [tensor("FOO"), SECOND],
        [],
        "unexpected inference input 'FOO' for model 'addsub'",
    ),
    "input missing": (
        "addsub",
        [FIRST],
        [],
        NO_ID + "expected 2 inputs but got 1 inputs for model 'addsub'. Got input(s) ['INPUT0'], but "
        "missing required input(s) ['INPUT1']. Please provide all required input(s).",
    ),
    "inputs missing": (
        "identity_fp32",
        [],
        [],
        NO_ID + "expected 1 inputs but got 0 inputs for model 'identity_fp32'. Got input(s) [], but "
        "missing required input(s) ['INPUT0']. Please provide all required input(s).",
    ),
    "input twice": (
        "addsub",
        [FIRST, FIRST],
        [],
        NO_ID + "input 'INPUT0' already exists in request",
    ),
    "output unknown": (
        "addsub",
        [FIRST, SECOND],
        ["NOPE"],
        "unexpected inference output 'NOPE' for model 'addsub'",
    ),
    "output twice": (
        "addsub",
        [FIRST, SECOND],
        ["OUTPUT0", "OUTPUT0"],
        NO_ID + "output 'OUTPUT0' already exists in request",
    ),
    "datatype of another model": (
        "addsub",
        [tensor(datatype="FP32"), SECOND],
        [],
        NO_ID + "inference input 'INPUT0' data-type is 'FP32', but model 'addsub' expects 'INT32'",
    ),
    "datatype unknown": (
        "addsub",
        [tensor(datatype="FOO"), SECOND],
        [],
        NO_ID + "inference input 'INPUT0' data-type is '<invalid>', but model 'addsub' expects 'INT32'",
    ),
    "shape": (
        "addsub",
        [tensor(shape=(1, 3), raw=ONES[:12]), SECOND],
        [],
        NO_ID
        + "unexpected shape for input 'INPUT0' for model 'addsub'. Expected [-1,16], got [1,3]. "
        + BATCH_NOTE,
    ),
    "shape without batching": (
        "identity_nobatch",
        [fp32((3,), HALVES[:12])],
        [],
        NO_ID + "unexpected shape for input 'INPUT0' for model 'identity_nobatch'. Expected [4], got [3]. ",
    ),
    "rank too high": (
        "identity_raw",
        [fp32((1, 1, 4))],
        [],
        NO_ID
        + "unexpected shape for input 'INPUT0' for model 'identity_raw'. Expected [-1,4], got [1,1,4]. "
        + BATCH_NOTE,
    ),
    "rank 0": (
        "identity_fp32",
        [fp32((), b"")],
        [],
        NO_ID + "input 'INPUT0' has no shape but model requires batch dimension for 'identity_fp32'",
    ),
    "too many rows": (
        "identity_raw",
        [fp32((9, 4), HALVES * 9)],
        [],
        NO_ID + "inference request batch-size must be <= 8 for 'identity_raw'",
    ),
    "no rows": (
        "identity_raw",
        [fp32((0, 4), b"")],
        [],
        NO_ID + "inference request batch-size must be >= 1 for 'identity_raw'",
    ),
    "too few bytes": (
        "identity_raw",
        [fp32(raw=HALVES[:12])],
        [],
        NO_ID + "input byte size mismatch for input 'INPUT0' for model 'identity_raw'. Expected 16, got 12",
    ),
    "too many bytes": (
        "identity_raw",
        [fp32(raw=HALVES * 2)],
        [],
        NO_ID + "input byte size mismatch for input 'INPUT0' for model 'identity_raw'. Expected 16, got 32",
    ),
    "string without a whole length": (
        "identity_bytes",
        [texts((1, 1), b"\1\0\0")],
        [],
        NO_ID + "incomplete string length indicator for inference input 'INPUT0' for model "
        "'identity_bytes', expecting 4 bytes but only 3 bytes available. Please make sure the string "
        "length indicator is in one buffer.",
    ),
    "string cut short": (
        "identity_bytes",
        [texts((1, 1), b"\2\0\0\0a")],
        [],
        "incomplete string data for inference input 'INPUT0', expecting string of length 2 but only 1 "
        "bytes available",
    ),
    "string with a length of 4 GiB": (
        "identity_bytes",
        [texts((1, 1), b"\xff\xff\xff\xffa")],
        [],
        "incomplete string data for inference input 'INPUT0', expecting string of length 4294967295 but "
        "only 1 bytes available",
    ),
    "too few strings": (
        "identity_bytes",
        [texts((1, 2), b"\1\0\0\0a")],
        [],
        NO_ID + "expected 2 string elements for inference input 'INPUT0' for model 'identity_bytes', got 1",
    ),
    "too many strings": (
        "identity_bytes",
        [texts((1, 1), b"\1\0\0\0a" * 2)],
        [],
        NO_ID + "unexpected number of string elements 2 for inference input 'INPUT0' for model "
        "'identity_bytes', expecting 1",
    ),
}


def refused_over_http(reply, status, text):
    got_status, _, body = reply
    try:
        got = json.loads(body)
    except ValueError:
        got = body
    equal((got_status, got), (status, {"error": text}))


def binary(name, datatype, shape, raw):
    parameters = {"binary_data_size": len(raw)}
    return {"name": name, "datatype": datatype, "shape": shape, "parameters": parameters}


def over_http(server, model, inputs, outputs, **more):
    request = {**more, "inputs": [binary(*one) for one in inputs]}
    if outputs:
        request["outputs"] = [{"name": name} for name in outputs]
    body = json.dumps(request).encode()
    return server.infer(model, body, b"".join(one[3] for one in inputs), len(body))


def message(model, inputs, outputs=(), **more):
    request = service_pb2.ModelInferRequest(model_name=model, **more)
    for name, datatype, shape, raw in inputs:
        request.inputs.add(name=name, datatype=datatype, shape=shape)
        request.raw_input_contents.append(raw)
    for name in outputs:
        request.outputs.add(name=name)
    return request


def refused_over_grpc(server, request, code, text):
    try:
        server.stub().ModelInfer(request, timeout=CALL_SECONDS_MAX)
    except grpc.RpcError as error:
        equal((error.code(), error.details()), (code, text))
        return
    raise AssertionError(f"was answered, not refused with {text!r}")


@check(WRONG)
def refused_by_http(server, row):
    model, inputs, outputs, text = row
    refused_over_http(over_http(server, model, inputs, outputs), 400, text)


@check(WRONG)
def refused_by_grpc(server, row):
    model, inputs, outputs, text = row
    code = grpc.StatusCode.INVALID_ARGUMENT
    refused_over_grpc(server, message(model, inputs, outputs), code, text)


@check()
def rows_that_differ(server):
    """Either input may be the one that is named."""
    status, _, body = over_http(server, "addsub", [FIRST, tensor("INPUT1", shape=(2, 16), raw=ONES * 2)], [])
    wanted = [
        NO_ID + f"input '{name}' batch size does not match other inputs for 'addsub'"
        for name in ("INPUT0", "INPUT1")
    ]
    equal(status, 400, "status")
    assert json.loads(body)["error"] in wanted, f"{body!r}, none of {wanted}"


@check()
def the_refusal_names_the_request(server):
    inputs = [fp32(raw=HALVES[:12])]
    text = (
        "[request id: my id] input byte size mismatch for input 'INPUT0' for model 'identity_raw'. "
        "Expected 16, got 12"
    )
    refused_over_http(over_http(server, "identity_raw", inputs, [], id="my id"), 400, text)
    code = grpc.StatusCode.INVALID_ARGUMENT
    refused_over_grpc(server, message("identity_raw", inputs, id="my id"), code, text)


@check(KINDS.keys())
def refusal_as_the_client_reports_it(server, kind):
    array = np.ones((1, 3), dtype=np.float32)
    with server.client(kind) as client:
        one = client.tensor("INPUT0", "FP32", array)
        status = client.status(404, "NOT_FOUND")
        text = "Request for unknown model: 'nope' is not found"
        fails(lambda: client.infer("nope", [one]), status, text)
        text = "Request for unknown model: 'identity_fp32' version 7 is not found"
        fails(lambda: client.infer("identity_fp32", [one], model_version="7"), status, text)
        status = client.status(400, "INVALID_ARGUMENT")
        text = (
            NO_ID + "unexpected shape for input 'INPUT0' for model 'identity_raw'. Expected [-1,4], "
            "got [1,3]. " + BATCH_NOTE
        )
        fails(lambda: client.infer("identity_raw", [one]), status, text)
        # The connection is still good.
        equal(client.infer("identity_fp32", [one]).as_numpy("OUTPUT0"), array)
