"""Wrong `ModelInferRequest` messages that only gRPC can carry."""

import grpc
from tritonclient.grpc import service_pb2

from .refusals import NO_ID, fp32, message, refused_over_grpc
from .registry import CALL_SECONDS_MAX, check, equal


def typed(datatype="INT32", field="int_contents", values=(1,), model="identity_int32", shape=(1, 1)):
    request = service_pb2.ModelInferRequest(model_name=model)
    one = request.inputs.add(name="INPUT0", datatype=datatype, shape=shape)
    getattr(one.contents, field).extend(values)
    return request


def both_contents():
    request = typed()
    request.raw_input_contents.append(b"\1\0\0\0")
    return request


def without_contents():
    request = message("identity_raw", [fp32()])
    del request.raw_input_contents[:]
    return request


def two_fields():
    request = typed()
    request.inputs[0].contents.fp32_contents.append(1)
    return request


def output_parameter(field, value):
    request = message("classify", [fp32()], ["OUTPUT0"])
    setattr(request.outputs[0].parameters["classification"], field, value)
    return request


def parameter(name):
    request = message("identity_raw", [fp32()])
    request.parameters[name].int64_param = 1
    return request


VERSION = (
    "failed to get model version from specified version string 'abc' (details: stol), version should "
    "be an integral value > 0"
)
# name: (request, text), refused as INVALID_ARGUMENT.
WRONG_MESSAGES = {
    "version no number": (message("identity_raw", [fp32()], model_version="abc"), VERSION),
    "typed and raw": (
        both_contents(),
        "contents field must not be specified when using raw_input_contents for 'INPUT0' for model "
        "'identity_int32'",
    ),
    "neither typed nor raw": (
        without_contents(),
        "unable to find data for input tensor 'INPUT0' for model 'identity_raw' in request.",
    ),
    "field of another datatype": (
        typed(field="fp32_contents"),
        "unexpected explicit tensor data for input tensor 'INPUT0' for model 'identity_int32' of type "
        "'FP32', expected datatype 'INT32'",
    ),
    "shape negative": (
        message("identity_raw", [fp32((1, -1))]),
        NO_ID + "All input dimensions should be specified for input 'INPUT0' for model 'identity_raw', "
        "got [1,-1]",
    ),
    "too few values": (
        typed(shape=(1, 2)),
        NO_ID + "input byte size mismatch for input 'INPUT0' for model 'identity_int32'. Expected 8, got 4",
    ),
    "classification negative": (
        output_parameter("int64_param", -1),
        "invalid value for 'classification' parameter, expected >= 0",
    ),
    "classification no number": (
        output_parameter("string_param", "2"),
        "invalid value type for 'classification' parameter, expected int64_param",
    ),
    "parameter is reserved": (
        parameter("triton_x"),
        "parameter keys starting with 'triton_' are reserved for Triton usage. Only the following keys "
        "starting with 'triton_' are allowed: triton_enable_empty_final_response",
    ),
}


@check(WRONG_MESSAGES)
def refused_message(server, row):
    request, text = row
    refused_over_grpc(server, request, grpc.StatusCode.INVALID_ARGUMENT, text)


@check()
def two_typed_fields(server):
    try:
        server.stub().ModelInfer(two_fields(), timeout=CALL_SECONDS_MAX)
    except grpc.RpcError as error:
        equal(error.code(), grpc.StatusCode.INVALID_ARGUMENT)
        assert "INPUT0" in error.details(), error.details()
        return
    raise AssertionError("was answered")
