"""Shared by checks of streams and sequences by tritonclient: their list and their run, tensors, one stream."""

import os
import queue

os.environ["no_proxy"] = os.environ["NO_PROXY"] = "*"

import ending  # noqa: F401
import numpy
import tritonclient.grpc

CHECKS = []
ELEMENTS = {"INT32": numpy.int32, "UINT32": numpy.uint32, "FP32": numpy.float32}


def check(function):
    CHECKS.append(function)
    return function


def run(addresses):
    """Runs all checks against a server at HTTP and GRPC; the first that fails ends the program."""
    for function in CHECKS:
        function(addresses)
        print(f"ok {function.__name__}", flush=True)


def equal(got, want, what):
    assert got == want, f"{what}: got {got!r}, want {want!r}"


def tensor(kind, name, values, datatype="INT32"):
    array = numpy.array(values, dtype=ELEMENTS[datatype])
    tensor = kind.InferInput(name, list(array.shape), datatype)
    tensor.set_data_from_numpy(array)
    return tensor


class Stream:
    """A stream whose responses are taken one by one."""

    def __init__(self, address):
        self.client = tritonclient.grpc.InferenceServerClient(address)
        self.responses = queue.Queue()
        self.client.start_stream(lambda result, error: self.responses.put((result, error)))

    def send(self, model, inputs, **more):
        self.client.async_stream_infer(model, inputs, **more)

    def take(self):
        return self.responses.get(timeout=30)

    def close(self, cancel=False):
        self.client.stop_stream(cancel_requests=cancel)
        self.client.close()
