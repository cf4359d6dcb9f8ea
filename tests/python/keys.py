"""tritonclient and grpcio with API keys: keys.py HTTP GRPC."""

import sys
import threading

import ending  # noqa: F401
import grpc
import numpy as np
import tritonclient.grpc as triton_grpc
import tritonclient.http as triton_http
from tritonclient.utils import InferenceServerException

http, rpc = sys.argv[1:]
values = np.arange(8, dtype=np.uint8).reshape(1, -1)


def inputs(module):
    tensor = module.InferInput("INPUT0", list(values.shape), "UINT8")
    tensor.set_data_from_numpy(values)
    return [tensor]


def refused(call, status):
    try:
        call()
    except InferenceServerException as error:
        assert str(error.status()) == status, (error.status(), status)
    else:
        raise AssertionError(f"a call that should be {status} was answered")



def key(name):
    # A new one each time: tritonclient adds its own fields.
    return {"authorization": f"Bearer s3cret-{name}"}


for module, address, unauthenticated, forbidden in (
    (triton_http, http, "401", "403"),
    (triton_grpc, rpc, "StatusCode.UNAUTHENTICATED", "StatusCode.PERMISSION_DENIED"),
):
    client = module.InferenceServerClient(address)
    assert client.is_server_live() and client.is_server_ready() and client.is_model_ready("identity_uint8")
    answer = client.infer("identity_uint8", inputs(module), headers=key("infer"))
    assert (answer.as_numpy("OUTPUT0") == values).all()
    answer = client.infer("identity_uint8", inputs(module), headers={"x-api-key": "s3cret-infer"})
    assert (answer.as_numpy("OUTPUT0") == values).all()
    refused(lambda: client.infer("identity_uint8", inputs(module)), unauthenticated)
    refused(lambda: client.infer("identity_uint8", inputs(module), headers=key("wrong")), unauthenticated)
    refused(lambda: client.infer("identity_uint8", inputs(module), headers=key("read")), forbidden)
    client.get_server_metadata(headers=key("read"))
    client.get_model_repository_index(headers=key("read"))
    refused(lambda: client.get_server_metadata(headers=key("infer")), forbidden)
    client.get_trace_settings(headers=key("admin"))
    refused(lambda: client.get_trace_settings(headers=key("read")), forbidden)

# A stream, with its key and without one.
client = triton_grpc.InferenceServerClient(rpc)
for fields, is_answered in ((key("infer"), True), (key("read"), False), (None, False)):
    done, came = threading.Event(), []

    def callback(result, error):
        came.append((result, error))
        done.set()

    client.start_stream(callback, headers=fields)
    try:
        client.async_stream_infer("identity_uint8", inputs(triton_grpc))
    except InferenceServerException:
        # The refusal came first.
        assert not is_answered
    assert done.wait(20)
    result, error = came[0]
    assert (error is None) == is_answered, error
    client.stop_stream(cancel_requests=not is_answered)

# grpcio itself: metadata of a call, and of all calls by an interceptor of the channel.
with grpc.insecure_channel(rpc) as channel:
    call = channel.unary_unary("/inference.GRPCInferenceService/ServerMetadata")
    assert b"deuteron" in call(b"", metadata=(("authorization", "Bearer s3cret-read"),))
    assert b"deuteron" in call(b"", metadata=(("x-api-key", "s3cret-read"),))
    for metadata, code in (
        ((), grpc.StatusCode.UNAUTHENTICATED),
        ((("x-api-key", "s3cret-infer"),), grpc.StatusCode.PERMISSION_DENIED),
    ):
        try:
            call(b"", metadata=metadata)
            raise AssertionError("it was answered")
        except grpc.RpcError as error:
            assert error.code() == code, error
print("all passed")
