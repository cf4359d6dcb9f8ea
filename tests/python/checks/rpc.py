"""Checks of gRPC alone: health service, reflection, unknown methods, deadlines, cancellation."""

import time

import grpc
import numpy as np
from google.protobuf.descriptor_pool import DescriptorPool
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2
from grpc_reflection.v1alpha.proto_reflection_descriptor_database import (
    ProtoReflectionDescriptorDatabase,
)
from tritonclient.utils import InferenceServerException

from .registry import CALL_SECONDS_MAX, GRPC_KINDS, check, equal

SERVICES = {"grpc.health.v1.Health", "inference.GRPCInferenceService"}
HEALTH = {"server": "", "service": "inference.GRPCInferenceService"}
METHODS = {
    "ServerLive",
    "ServerReady",
    "ModelReady",
    "ServerMetadata",
    "ModelMetadata",
    "ModelConfig",
    "ModelInfer",
}


@check(HEALTH)
def health_check(server, service):
    stub = health_pb2_grpc.HealthStub(server.channel())
    request = health_pb2.HealthCheckRequest(service=service)
    got = stub.Check(request, timeout=CALL_SECONDS_MAX)
    equal(got.status, health_pb2.HealthCheckResponse.SERVING)


@check(HEALTH)
def health_watch(server, service):
    stub = health_pb2_grpc.HealthStub(server.channel())
    request = health_pb2.HealthCheckRequest(service=service)
    watch = stub.Watch(request, timeout=CALL_SECONDS_MAX)
    equal(next(watch).status, health_pb2.HealthCheckResponse.SERVING)
    # The stream stays open: nothing more is said while nothing changes.
    assert watch.is_active(), f"the stream ended with {watch.code()}"
    watch.cancel()


def reflected(server, version, **asked):
    """The answers to one question, from either version of the service; their messages are alike."""
    call = server.channel().stream_stream(
        f"/grpc.reflection.{version}.ServerReflection/ServerReflectionInfo",
        request_serializer=reflection_pb2.ServerReflectionRequest.SerializeToString,
        response_deserializer=reflection_pb2.ServerReflectionResponse.FromString,
    )
    request = reflection_pb2.ServerReflectionRequest(**asked)
    (answer,) = call(iter([request]), timeout=CALL_SECONDS_MAX)
    return answer


@check(("v1", "v1alpha"))
def reflection_lists_services(server, version):
    answer = reflected(server, version, list_services="")
    services = {service.name for service in answer.list_services_response.service}
    equal(SERVICES - services, set(), "missing services")
    assert f"grpc.reflection.{version}.ServerReflection" in services, f"no reflection in {services}"


@check(("v1", "v1alpha"))
def reflection_knows_no_such_symbol(server, version):
    answer = reflected(server, version, file_containing_symbol="inference.Nope")
    equal(answer.error_response.error_code, grpc.StatusCode.NOT_FOUND.value[0])


@check()
def reflection_describes_the_service(server):
    pool = DescriptorPool(ProtoReflectionDescriptorDatabase(server.channel()))
    service = pool.FindServiceByName("inference.GRPCInferenceService")
    missing = METHODS - {method.name for method in service.methods}
    equal(missing, set(), "missing methods")
    request = service.FindMethodByName("ModelInfer").input_type
    numbers = {field.name: field.number for field in request.fields}
    equal((numbers["inputs"], numbers["raw_input_contents"]), (5, 7))
    health = pool.FindServiceByName("grpc.health.v1.Health")
    equal({method.name for method in health.methods} >= {"Check", "Watch"}, True)


@check(
    {
        "method": "/inference.GRPCInferenceService/Nope",
        "service": "/inference.Nope/ModelInfer",
    }
)
def unknown_method(server, path):
    call = server.channel().unary_unary(path)
    try:
        call(b"", timeout=CALL_SECONDS_MAX)
    except grpc.RpcError as error:
        equal(error.code(), grpc.StatusCode.UNIMPLEMENTED)
        return
    raise AssertionError("was answered")


@check(GRPC_KINDS)
def deadline(server, kind):
    array = np.ones((1, 1), dtype=np.float32)
    with server.client(kind) as client:
        tensor = client.tensor("INPUT0", "FP32", array)
        begin = time.monotonic()
        try:
            client.infer("slow", [tensor], client_timeout=0.05)
            raise AssertionError("was answered")
        except InferenceServerException as error:
            equal(error.status(), "StatusCode.DEADLINE_EXCEEDED")
        took = time.monotonic() - begin
        assert took < 0.25, f"took {took:.3f} s, as long as the model"
        equal(client.infer("slow", [tensor]).as_numpy("OUTPUT0"), array, "after it")


@check({"DEADLINE_EXCEEDED": 0.05, "CANCELLED": CALL_SECONDS_MAX})
def a_request_given_up_is_not_run(server, deadline):
    """While one run takes 300 ms, six full batches queue up and are given up."""
    with server.client("grpc") as client:
        rows = client.tensor("INPUT0", "FP32", np.ones((8, 1), dtype=np.float32))
        client.infer("slow", [rows])
        begin = time.monotonic()
        statuses = []

        def answered(result, error):
            statuses.append(error.status() if error else "answered")

        def send(seconds):
            return client.call("async_infer", "slow", [rows], answered, client_timeout=seconds)

        send(CALL_SECONDS_MAX)
        time.sleep(0.05)
        given_up = [send(deadline) for _ in range(6)]
        time.sleep(0.1)  # those with a short deadline are over by now
        for call in given_up:
            call.cancel()
        client.infer("slow", [rows])
        took = time.monotonic() - begin
    want = "StatusCode." + ("CANCELLED" if deadline == CALL_SECONDS_MAX else "DEADLINE_EXCEEDED")
    equal(sorted(statuses), [want] * 6 + ["answered"])
    assert took < 1.1, f"two runs took {took:.2f} s: others were run in between"


@check()
def a_message_that_is_not_protobuf(server):
    call = server.channel().unary_unary("/inference.GRPCInferenceService/ModelInfer")
    try:
        call(b"\xff\xff\xff\xff", timeout=CALL_SECONDS_MAX)
    except grpc.RpcError as error:
        assert error.code() in (grpc.StatusCode.INTERNAL, grpc.StatusCode.INVALID_ARGUMENT), error.code()
        return
    raise AssertionError("was answered")
