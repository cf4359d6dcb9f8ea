"""gRPC's keep-alive against a server, by grpcio's channel arguments: one case by its name."""

import sys
import time

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

FAST = [
    ("grpc.keepalive_time_ms", 150),
    ("grpc.keepalive_timeout_ms", 5000),
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.http2.max_pings_without_data", 0),
    ("grpc.enable_retries", 0),
]


# A channel may go on with the connection of one that was closed just before, whatever its age.
OWN_CONNECTION = ("grpc.use_local_subchannel_pool", 1)


def watch(address, options, seconds):
    """Watches the server's health, which says nothing after its first answer; how that ended."""
    with grpc.insecure_channel(address, options=[*options, OWN_CONNECTION]) as channel:
        stub = health_pb2_grpc.HealthStub(channel)
        answers = stub.Watch(health_pb2.HealthCheckRequest(), timeout=seconds)
        try:
            for answer in answers:
                assert answer.status == health_pb2.HealthCheckResponse.SERVING
        except grpc.RpcError as error:
            return error
    raise AssertionError("a watch does not end by itself")


def too_many_pings(address):
    error = watch(address, FAST, 10)
    assert error.code() == grpc.StatusCode.UNAVAILABLE, error
    text = error.details().lower()
    assert "too many pings" in text or "too_many_pings" in text, error


def enough_pings(address):
    error = watch(address, FAST, 2)
    assert error.code() == grpc.StatusCode.DEADLINE_EXCEEDED, error


def quiet_stream(address):
    error = watch(address, [], 3)
    assert error.code() == grpc.StatusCode.DEADLINE_EXCEEDED, error


def age(address):
    with grpc.insecure_channel(address) as channel:
        stub = health_pb2_grpc.HealthStub(channel)
        until = time.monotonic() + 3
        while time.monotonic() < until:
            stub.Check(health_pb2.HealthCheckRequest(), timeout=5)
            time.sleep(0.02)
    start = time.monotonic()
    error = watch(address, [], 10)
    assert error.code() == grpc.StatusCode.UNAVAILABLE, error
    assert 1 <= time.monotonic() - start < 4, time.monotonic() - start


{case.__name__: case for case in (too_many_pings, enough_pings, quiet_stream, age)}[sys.argv[1]](sys.argv[2])
print("ok")
