"""Wrong JSON, wrong sizes and wrong raw binary requests: what only HTTP can carry."""

import json

import numpy as np

from .refusals import HALVES, NO_ID, binary, fp32, over_http, refused_over_http, tensor
from .registry import check, equal


def numbers(**changes):
    """A right input of `addsub` as JSON, but for the changes; None takes a member away."""
    one = {"name": "INPUT0", "datatype": "INT32", "shape": [1, 16], "data": [1] * 16, **changes}
    return {name: value for name, value in one.items() if value is not None}


def pair(**changes):
    return {"inputs": [numbers(**changes), numbers(name="INPUT1")]}


def single(datatype, *values, shape=None, **more):
    one = {
        "name": "INPUT0",
        "datatype": datatype,
        "shape": shape or [1, len(values)],
        "data": values,
    }
    return {"inputs": [one], **more}


def classified(count):
    outputs = [{"name": "OUTPUT0", "parameters": {"classification": count}}]
    return single("FP32", 1, 2, 3, 4, outputs=outputs)


BAD_JSON = "failed to parse the request JSON buffer: "
NO_INPUTS = "Unable to parse 'inputs': attempt to access non-existing object member 'inputs'"
NOT_UNSIGNED = "attempt to access JSON non-unsigned-integer as unsigned-integer"
NOT_SIGNED = "Unable to parse 'data': attempt to access JSON non-signed-integer as signed-integer"
ONE_SOURCE = (
    "Input must set only one of the following fields: 'data', 'binary_data_size' in 'parameters', "
    "'shared_memory_region' in 'parameters'. "
)
# name: (model, request, text), refused with 400.
WRONG_JSON = {
    "no value": ("addsub", b'{"inputs": }', BAD_JSON + "Invalid value. at 11"),
    "cut off": ("addsub", b"{", BAD_JSON + "Missing a name for object member. at 1"),
    "no object": ("addsub", b"[1]", NO_INPUTS),
    "no inputs": ("addsub", {}, NO_INPUTS),
    "inputs no array": (
        "addsub",
        {"inputs": 1},
        "Unable to parse 'inputs': attempt to access JSON non-array as array",
    ),
    "input without name": (
        "addsub",
        pair(name=None),
        "Unable to parse 'name': attempt to access non-existing object member 'name'",
    ),
    "input without datatype": (
        "addsub",
        pair(datatype=None),
        "Unable to parse 'datatype': attempt to access non-existing object member 'datatype'",
    ),
    "input without shape": (
        "addsub",
        pair(shape=None),
        "Unable to parse 'shape': attempt to access non-existing object member 'shape'",
    ),
    "name no string": (
        "addsub",
        pair(name=1),
        "Unable to parse 'name': attempt to access JSON non-string as string",
    ),
    "id no string": (
        "addsub",
        {**pair(), "id": 3},
        "Unable to parse 'id': attempt to access JSON non-string as string",
    ),
    "shape negative": ("addsub", pair(shape=[-1, 16]), f"Unable to parse 'shape': {NOT_UNSIGNED}"),
    "shape no integer": (
        "addsub",
        pair(shape=[1.5, 16]),
        f"Unable to parse 'shape': {NOT_UNSIGNED}",
    ),
    "no data": ("addsub", pair(data=None), ONE_SOURCE + "But no field is set"),
    "data twice": (
        "addsub",
        pair(parameters={"binary_data_size": 64}),
        ONE_SOURCE + "But set 'data' 'binary_data_size'",
    ),
    "datatype unknown": ("addsub", pair(datatype="FOO"), "invalid datatype for input INPUT0"),
    "FP16 data": (
        "identity_fp16",
        single("FP16", 1.0),
        "receiving FP16 data via JSON is not supported. Please use the binary data format for input INPUT0",
    ),
    "BF16 data": (
        "identity_bf16",
        single("BF16", 1.0),
        "receiving BF16 data via JSON is not supported. Please use the binary data format for input INPUT0",
    ),
    "data too short": (
        "addsub",
        pair(data=[1] * 15),
        "Failed to parse 'data' field: shape does not match true shape",
    ),
    "data too long": (
        "addsub",
        pair(data=[1] * 17),
        "Unable to parse 'data': Shape does not match true shape of 'data' field",
    ),
    "string for INT32": ("addsub", pair(data=["a"] + [1] * 15), NOT_SIGNED),
    "null for INT32": ("addsub", pair(data=[None] + [1] * 15), NOT_SIGNED),
    "number for BOOL": (
        "identity_bool",
        single("BOOL", True, 1),
        "Unable to parse 'data': attempt to access JSON non-boolean as boolean",
    ),
    "string for FP32": (
        "identity_fp32",
        single("FP32", "a"),
        "Unable to parse 'data': attempt to access JSON non-number as double",
    ),
    "number for BYTES": (
        "identity_bytes",
        single("BYTES", "a", 1),
        "Unable to parse JSON bytes array: attempt to access JSON non-string as string",
    ),
    "classification negative": (
        "classify",
        classified(-1),
        f"Unable to set 'classification': {NOT_UNSIGNED}",
    ),
    "classification no number": (
        "classify",
        classified("a"),
        f"Unable to set 'classification': {NOT_UNSIGNED}",
    ),
    "parameter is an object": (
        "identity_fp32",
        single("FP32", 1, parameters={"a": {}}),
        "parameter 'a' has invalid type. It should be either 'int', 'bool', or 'string'.",
    ),
    "parameter is reserved": (
        "identity_fp32",
        single("FP32", 1, parameters={"triton_x": 1}),
        "parameter keys starting with 'triton_' are reserved for Triton usage and should not be specified.",
    ),
}


@check(WRONG_JSON)
def refused_json(server, row):
    model, request, text = row
    refused_over_http(server.infer(model, request), 400, text)


@check(
    {
        "2^40 for INT32": ("int32", single("INT32", 1 << 40)),
        "2^31 for INT32": ("int32", single("INT32", 1 << 31)),
        "1.5 for INT32": ("int32", single("INT32", 1.5)),
        "128 for INT8": ("int8", single("INT8", 128)),
        "256 for UINT8": ("uint8", single("UINT8", 256)),
        "-1 for UINT8": ("uint8", single("UINT8", -1)),
        "-1 for UINT64": ("uint64", single("UINT64", -1)),
        "2^64 for UINT64": ("uint64", single("UINT64", 1 << 64)),
        "2^63 for INT64": ("int64", single("INT64", 1 << 63)),
        "1e39 for FP32": ("fp32", single("FP32", 1e39)),
    }
)
def number_out_of_range(server, row):
    """Refused by name, never wrapped."""
    suffix, request = row
    status, _, body = server.infer(f"identity_{suffix}", request)
    equal(status, 400, "status")
    assert "INPUT0" in json.loads(body)["error"], f"does not name the input: {body!r}"


@check()
def fp16_output_as_json(server):
    raw = np.array([1], dtype=np.float16).tobytes()
    inputs = [tensor("INPUT0", "FP16", (1, 1), raw)]
    text = "sending FP16 data via JSON is not supported. Please use the binary data format for output"
    refused_over_http(over_http(server, "identity_fp16", inputs, ["OUTPUT0"]), 400, text)


SIZED = json.dumps({"inputs": [binary(*fp32())]}).encode()
# name: (body, tail, header size or None for the right one, text).
WRONG_SIZES = {
    "tail too short": (
        SIZED,
        HALVES[:12],
        None,
        "unexpected size for input 'INPUT0', expecting 4 additional bytes for model 'identity_raw'",
    ),
    "tail too long": (
        SIZED,
        HALVES + b"\0",
        None,
        "unexpected additional input data for model 'identity_raw'",
    ),
    "header negative": (
        SIZED,
        HALVES,
        -5,
        f"inference header size should be in range (0, {len(SIZED) + 16}), got: -5",
    ),
    "header beyond the body": (
        SIZED,
        HALVES,
        1000,
        f"inference header size should be in range (0, {len(SIZED) + 16}), got: 1000",
    ),
    "header no number": (
        SIZED,
        HALVES,
        "abc",
        "Unable to parse Inference-Header-Content-Length, got: abc",
    ),
}


@check(WRONG_SIZES)
def refused_size(server, row):
    body, tail, header_size, text = row
    refused_over_http(server.infer("identity_raw", body, tail, header_size), 400, text)


@check(
    {
        "too short": (
            "identity_raw",
            HALVES[:12],
            "input byte size mismatch for input 'raw_input' for model 'identity_raw'. Expected 16, got 12",
        ),
        "two inputs": (
            "identity_two",
            HALVES,
            "Raw request must only have 1 input (found 1) to be deduced but got 2 inputs in "
            "'identity_two' model configuration",
        ),
        "strings of any shape": (
            "identity_bytes",
            b"\1\0\0\0a",
            "For BYTE datatype raw input 'INPUT0', the model must have input shape [1]",
        ),
    }
)
def refused_raw_binary_request(server, row):
    model, body, text = row
    refused_over_http(server.raw(model, body), 400, NO_ID + text)
