"""The parts of checks: their register, one face for the four kinds of client, plain HTTP."""

import asyncio
import http.client
import json

import grpc
import numpy as np
import tritonclient.grpc
import tritonclient.grpc.aio
import tritonclient.http
import tritonclient.http.aio
from tritonclient.grpc import service_pb2_grpc
from tritonclient.utils import InferenceServerException

CALL_SECONDS_MAX = 30
CHECKS = {}
KINDS = {
    "http": tritonclient.http,
    "http_aio": tritonclient.http.aio,
    "grpc": tritonclient.grpc,
    "grpc_aio": tritonclient.grpc.aio,
}
HTTP_KINDS = ("http", "http_aio")
GRPC_KINDS = ("grpc", "grpc_aio")
HEADER_SIZE = "Inference-Header-Content-Length"


class Skipped(Exception):
    """The server lacks a model that a check is about, and may."""


def reason(error):
    """Why a check failed, on one line."""
    if isinstance(error, grpc.RpcError):
        return f"{error.code()} {error.details()}"
    return " ".join(str(error).split()) or type(error).__name__


def check(*axes):
    """Registers a check, once for each combination of the axes' keys.

    An axis that is a dict passes its value on, any other its item. `check()` registers one.
    """

    def label(key):
        return key if isinstance(key, str) else "-".join(key)

    def keep(function):
        rows = [("", ())]
        for axis in axes:
            pairs = axis.items() if isinstance(axis, dict) else [(key, key) for key in axis]
            rows = [(f"{name}[{label(key)}]", (*got, value)) for name, got in rows for key, value in pairs]
        for name, got in rows:
            CHECKS[function.__name__ + name] = lambda server, got=got: function(server, *got)
        return function

    return keep


def equal(got, want, what="answer"):
    """Same shape, datatype and bytes for arrays, equality for everything else."""
    if isinstance(want, np.ndarray):
        assert got is not None, f"{what}: no tensor"
        assert got.shape == want.shape, f"{what}: shape {got.shape}, not {want.shape}"
        assert got.dtype == want.dtype, f"{what}: dtype {got.dtype}, not {want.dtype}"
        same = (got == want).all() if want.dtype == object else got.tobytes() == want.tobytes()
        assert same, f"{what}: {got.tolist()!s:.300}, not {want.tolist()!s:.300}"
    else:
        assert got == want, f"{what}: {got!r}, not {want!r}"


def fails(call, want_status, want_text):
    """`call` raises what the client makes of this status and text."""
    try:
        call()
    except InferenceServerException as error:
        equal((error.status(), error.message()), (want_status, want_text))
        return
    raise AssertionError(f"was answered, not refused with {want_status} {want_text!r}")


class Client:
    """One tritonclient client. Those of asyncio look synchronous: each call runs to its end."""

    def __init__(self, kind, address, loop):
        self.kind = kind
        self.is_http = kind in HTTP_KINDS
        self.module = KINDS[kind]
        self.loop = loop

        async def connect():  # those of asyncio want the loop that they will use
            return self.module.InferenceServerClient(address)

        self.inner = loop.run_until_complete(connect())

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.call("close")

    def call(self, method, *args, **kwargs):
        got = getattr(self.inner, method)(*args, **kwargs)
        return self.loop.run_until_complete(got) if asyncio.iscoroutine(got) else got

    def document(self, method, *args):
        """The answer of a metadata call as JSON; gRPC writes its 64-bit integers as text."""
        return self.call(method, *args, **({} if self.is_http else {"as_json": True}))

    def tensor(self, name, datatype, array, binary=True):
        tensor = self.module.InferInput(name, list(array.shape), datatype)
        return tensor.set_data_from_numpy(array, **({"binary_data": binary} if self.is_http else {}))

    def output(self, name, binary=True, **kwargs):
        if self.is_http:
            kwargs["binary_data"] = binary
        return self.module.InferRequestedOutput(name, **kwargs)

    def infer(self, model, tensors, **kwargs):
        if not self.is_http:
            kwargs.setdefault("client_timeout", CALL_SECONDS_MAX)
        return self.call("infer", model, tensors, **kwargs)

    def response(self, result):
        """The infer response without its tensors, as JSON."""
        return result.get_response() if self.is_http else result.get_response(as_json=True)

    def status(self, http_status, grpc_status):
        """The text of `InferenceServerException.status` for either protocol."""
        return str(http_status) if self.is_http else f"StatusCode.{grpc_status}"


class Server:
    """The server's addresses, and the ways to talk to it."""

    def __init__(self, http_address, grpc_address):
        self.http = http_address
        self.grpc = grpc_address
        self.loop = asyncio.new_event_loop()
        self.channels = []

    def __enter__(self):
        return self

    def __exit__(self, *_):
        for channel in self.channels:
            channel.close()
        self.loop.close()

    def client(self, kind):
        address = self.http if kind in HTTP_KINDS else self.grpc
        return Client(kind, address, self.loop)

    def channel(self):
        if not self.channels:
            self.channels.append(grpc.insecure_channel(self.grpc))
        return self.channels[0]

    def stub(self):
        return service_pb2_grpc.GRPCInferenceServiceStub(self.channel())

    def needs(self, model):
        with self.client("http") as client:
            if not client.call("is_model_ready", model):
                raise Skipped(f"no model {model}")

    def request(self, method, path, body=None, headers=None):
        """`(status, headers, body)` of one plain HTTP exchange on a connection of its own."""
        host, port = self.http.rsplit(":", 1)
        connection = http.client.HTTPConnection(host, int(port), timeout=CALL_SECONDS_MAX)
        try:
            connection.request(method, path, body, headers or {})
            response = connection.getresponse()
            return response.status, response.headers, response.read()
        finally:
            connection.close()

    def infer(self, model, request, tail=b"", header_size=None):
        """An infer request as JSON (or as the bytes given), followed by binary tensors."""
        body = request if isinstance(request, bytes) else json.dumps(request).encode()
        headers = {"Content-Type": "application/json"}
        if tail or header_size is not None:
            size = len(body) if header_size is None else header_size
            headers = {"Content-Type": "application/octet-stream", HEADER_SIZE: str(size)}
        return self.request("POST", f"/v2/models/{model}/infer", body + tail, headers)

    def raw(self, model, body):
        """A raw binary request: no inference header at all."""
        return self.infer(model, body, header_size=0)


def decode(reply):
    """`(JSON, binary part)` of a successful plain exchange."""
    status, headers, body = reply
    assert status == 200, f"status {status}: {body[:300]!r}"
    size = int(headers.get(HEADER_SIZE, len(body)))
    want = "application/octet-stream" if HEADER_SIZE in headers else "application/json"
    equal(headers["Content-Type"], want, "Content-Type")
    return json.loads(body[:size]), body[size:]
