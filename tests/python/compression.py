"""Compression as Python clients ask for it: tritonclient over HTTP and gRPC, sync and asyncio, and grpcio by itself.

Usage: compression.py HTTP GRPC. The test counts what the server inflated and compressed.
"""

import asyncio
import os
import queue
import sys

os.environ["no_proxy"] = os.environ["NO_PROXY"] = "*"

import ending  # noqa: F401
import grpc
import numpy
import tritonclient.grpc
import tritonclient.grpc.aio
import tritonclient.http
import tritonclient.http.aio
from tritonclient.grpc import service_pb2, service_pb2_grpc

CODINGS = ["gzip", "deflate"]
VALUES = (numpy.arange(20_000, dtype=numpy.float32) % 100).reshape(1, -1)


def tensors(kind):
    tensor = kind.InferInput("INPUT0", list(VALUES.shape), "FP32")
    tensor.set_data_from_numpy(VALUES)
    return [tensor]


def check(result, what):
    got = result.as_numpy("OUTPUT0")
    assert numpy.array_equal(got, VALUES), f"{what}: got {got!r}"
    print(f"ok {what}", flush=True)


def over_http(address):
    with tritonclient.http.InferenceServerClient(address) as client:
        for coding in CODINGS:
            both = {"request_compression_algorithm": coding, "response_compression_algorithm": coding}
            check(client.infer("identity_fp32", tensors(tritonclient.http), **both), f"http {coding}")


async def over_http_aio(address):
    async with tritonclient.http.aio.InferenceServerClient(address) as client:
        for coding in CODINGS:
            both = {"request_compression_algorithm": coding, "response_compression_algorithm": coding}
            check(await client.infer("identity_fp32", tensors(tritonclient.http), **both), f"http aio {coding}")


def over_grpc(address):
    with tritonclient.grpc.InferenceServerClient(address) as client:
        for coding in CODINGS:
            inputs = tensors(tritonclient.grpc)
            check(client.infer("identity_fp32", inputs, compression_algorithm=coding), f"grpc {coding}")
            responses = queue.Queue()
            client.start_stream(lambda result, error: responses.put((result, error)), compression_algorithm=coding)
            for _ in range(2):
                client.async_stream_infer("identity_fp32", tensors(tritonclient.grpc))
            for _ in range(2):
                result, error = responses.get(timeout=30)
                assert error is None, error
                check(result, f"grpc stream {coding}")
            client.stop_stream()


async def over_grpc_aio(address):
    async with tritonclient.grpc.aio.InferenceServerClient(address) as client:
        for coding in CODINGS:
            inputs = tensors(tritonclient.grpc)
            check(await client.infer("identity_fp32", inputs, compression_algorithm=coding), f"grpc aio {coding}")


def over_grpcio(address):
    for compression in [grpc.Compression.Gzip, grpc.Compression.Deflate]:
        with grpc.insecure_channel(address, compression=compression) as channel:
            stub = service_pb2_grpc.GRPCInferenceServiceStub(channel)
            tensor = service_pb2.ModelInferRequest.InferInputTensor(
                name="INPUT0", datatype="FP32", shape=VALUES.shape
            )
            request = service_pb2.ModelInferRequest(
                model_name="identity_fp32", inputs=[tensor], raw_input_contents=[VALUES.tobytes()]
            )
            assert stub.ModelInfer(request).raw_output_contents[0] == VALUES.tobytes()
            # As large as grpcio cares to compress.
            ready = service_pb2.ModelReadyRequest(name="n" * 200)
            assert not stub.ModelReady(ready).ready
            print(f"ok grpcio {compression}", flush=True)


http_address, grpc_address = sys.argv[1:]
over_http(http_address)
asyncio.run(over_http_aio(http_address))
over_grpc(grpc_address)
asyncio.run(over_grpc_aio(grpc_address))
over_grpcio(grpc_address)
