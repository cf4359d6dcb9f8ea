"""tritonclient and grpcio over TLS: HTTP with the server's certificate, gRPC with one of the client's as well."""

import argparse
import queue
import ssl

import ending  # noqa: F401
import grpc
import numpy as np
import tritonclient.grpc as triton_grpc
import tritonclient.http as triton_http
from tritonclient.utils import InferenceServerException

arguments = argparse.ArgumentParser()
for name in ("http", "grpc", "authority", "certificate", "key"):
    arguments.add_argument(f"--{name}", required=True)
arguments = arguments.parse_args()


def read(path):
    with open(path, "rb") as file:
        return file.read()


def tensor(module, values):
    tensor = module.InferInput("INPUT0", list(values.shape), "UINT8")
    tensor.set_data_from_numpy(values)
    return tensor


values = np.arange(200_000, dtype=np.uint8).reshape(1, -1)

# HTTP, as its documentation has it; also in parallel, and compressed.
options = {"ca_certs": arguments.authority}
client = triton_http.InferenceServerClient(arguments.http, ssl=True, ssl_options=options, concurrency=4)
assert client.is_server_live() and client.is_model_ready("identity_uint8")
for compression in (None, "gzip", "deflate"):
    answer = client.infer(
        "identity_uint8",
        [tensor(triton_http, values)],
        request_compression_algorithm=compression,
        response_compression_algorithm=compression,
    )
    assert (answer.as_numpy("OUTPUT0") == values).all()
pending = [client.async_infer("identity_uint8", [tensor(triton_http, values)]) for _ in range(40)]
assert all((answer.get_result().as_numpy("OUTPUT0") == values).all() for answer in pending)
client.close()
try:
    triton_http.InferenceServerClient(arguments.http, ssl=True).is_server_live()
    raise AssertionError("a client that does not trust the server was served")
except (ssl.SSLError, InferenceServerException) as error:
    assert "CERTIFICATE_VERIFY_FAILED" in str(error), error

# gRPC with both certificates: calls, a stream, headers, a message of megabytes.
client = triton_grpc.InferenceServerClient(
    arguments.grpc,
    ssl=True,
    root_certificates=arguments.authority,
    private_key=arguments.key,
    certificate_chain=arguments.certificate,
)
assert client.is_server_ready()
large = np.zeros((1, 5_000_000), dtype=np.uint8)
for sent in (values, large):
    answer = client.infer("identity_uint8", [tensor(triton_grpc, sent)], headers={"a": "b"})
    assert (answer.as_numpy("OUTPUT0") == sent).all()
answers = queue.Queue()
client.start_stream(lambda result, error: answers.put((result, error)))
for _ in range(100):
    client.async_stream_infer("identity_uint8", [tensor(triton_grpc, values)])
for _ in range(100):
    result, error = answers.get(timeout=20)
    assert error is None and (result.as_numpy("OUTPUT0") == values).all()
client.stop_stream()
client.close()

# Without the client's certificate there is no connection.
client = triton_grpc.InferenceServerClient(arguments.grpc, ssl=True, root_certificates=arguments.authority)
try:
    client.is_server_live()
    raise AssertionError("a client without a certificate was served")
except InferenceServerException as error:
    assert "UNAVAILABLE" in str(error), error
client.close()

# grpcio by itself, many channels.
credentials = grpc.ssl_channel_credentials(read(arguments.authority), read(arguments.key), read(arguments.certificate))
for index in range(20):
    with grpc.secure_channel(arguments.grpc, credentials, options=[("channel", index)]) as channel:
        live = channel.unary_unary("/inference.GRPCInferenceService/ServerLive")
        assert live(b"", timeout=10) == b"\x08\x01"
print("all passed")
