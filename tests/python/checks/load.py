"""Many clients at once, each demanding its own answers; and both protocols on one port."""

import asyncio
import concurrent.futures
import random

import grpc
import numpy as np
import tritonclient.grpc
import tritonclient.grpc.aio
import tritonclient.http
import tritonclient.http.aio
from grpc_health.v1 import health_pb2, health_pb2_grpc

from .registry import CALL_SECONDS_MAX, KINDS, Client, check, equal

CLIENT_COUNT = 64
REQUEST_COUNT = 20
OWN_CONNECTION = [("grpc.use_local_subchannel_pool", 1)]


def nonce(client_index, request_index):
    """A tensor and an id that no other request has."""
    chance = random.Random(client_index * REQUEST_COUNT + request_index)
    size = chance.choice((1, 2, 16, 300))
    values = [client_index, request_index, *(chance.getrandbits(63) for _ in range(size))]
    return f"{client_index}-{request_index}", np.array([values], dtype=np.int64)


def tensor(module, array):
    return module.InferInput("INPUT0", list(array.shape), "INT64").set_data_from_numpy(array)


def is_own(result, name, array):
    response = result.get_response()
    got = response["id"] if isinstance(response, dict) else response.id
    equal(got, name, "id")
    equal(result.as_numpy("OUTPUT0"), array)


def in_threads(connect, module, **kwargs):
    def run(client_index):
        client = connect()
        try:
            for request_index in range(REQUEST_COUNT):
                name, array = nonce(client_index, request_index)
                sent = [tensor(module, array)]
                result = client.infer("identity_int64", sent, request_id=name, **kwargs)
                is_own(result, name, array)
        finally:
            client.close()

    with concurrent.futures.ThreadPoolExecutor(CLIENT_COUNT) as pool:
        for done in [pool.submit(run, index) for index in range(CLIENT_COUNT)]:
            done.result()


def in_tasks(server, connect, module, **kwargs):
    async def run(client, client_index):
        for request_index in range(REQUEST_COUNT):
            name, array = nonce(client_index, request_index)
            sent = [tensor(module, array)]
            result = await client.infer("identity_int64", sent, request_id=name, **kwargs)
            is_own(result, name, array)

    async def all_of_them():
        async with connect() as client:
            await asyncio.gather(*(run(client, index) for index in range(CLIENT_COUNT)))

    server.loop.run_until_complete(all_of_them())


@check()
def parallel_threads_over_http(server):
    module = tritonclient.http
    in_threads(lambda: module.InferenceServerClient(server.http), module)


@check()
def parallel_threads_over_grpc(server):
    module = tritonclient.grpc

    def connect():
        return module.InferenceServerClient(server.grpc, channel_args=OWN_CONNECTION)

    in_threads(connect, module, client_timeout=CALL_SECONDS_MAX)


@check()
def parallel_tasks_over_http(server):
    module = tritonclient.http.aio

    def connect():
        return module.InferenceServerClient(server.http, conn_limit=CLIENT_COUNT)

    in_tasks(server, connect, module)


@check()
def parallel_tasks_over_one_grpc_connection(server):
    module = tritonclient.grpc.aio
    timeout = {"client_timeout": CALL_SECONDS_MAX}
    in_tasks(server, lambda: module.InferenceServerClient(server.grpc), module, **timeout)


@check()
def many_in_flight_from_one_http_client(server):
    client = tritonclient.http.InferenceServerClient(server.http, concurrency=8)
    try:
        sent = [nonce(CLIENT_COUNT, index) for index in range(CLIENT_COUNT)]
        calls = [
            client.async_infer("identity_int64", [tensor(tritonclient.http, array)], request_id=name)
            for name, array in sent
        ]
        for call, (name, array) in zip(calls, sent):
            is_own(call.get_result(timeout=CALL_SECONDS_MAX), name, array)
    finally:
        client.close()


@check(KINDS.keys())
def one_port_is_enough(server, kind):
    """HTTP on the gRPC port, gRPC on the HTTP port."""
    address = server.grpc if kind.startswith("http") else server.http
    array = np.array([[1, 2, 3]], dtype=np.int64)
    with Client(kind, address, server.loop) as client:
        equal(client.call("is_server_ready"), True)
        result = client.infer("identity_int64", [client.tensor("INPUT0", "INT64", array)])
        equal(result.as_numpy("OUTPUT0"), array)


@check()
def health_service_on_the_http_port(server):
    with grpc.insecure_channel(server.http) as channel:
        stub = health_pb2_grpc.HealthStub(channel)
        got = stub.Check(health_pb2.HealthCheckRequest(), timeout=CALL_SECONDS_MAX)
        equal(got.status, health_pb2.HealthCheckResponse.SERVING)
