"""Header fields that a server forwards to models as parameters, by tritonclient: headers=, plug-ins and streams."""

import asyncio
import queue
import sys

import ending  # noqa: F401
import numpy as np
import tritonclient.grpc as grpc
import tritonclient.grpc.aio as grpc_aio
import tritonclient.http as http
import tritonclient.http.aio as http_aio
from tritonclient._plugin import InferenceServerClientPlugin
from tritonclient.utils import InferenceServerException

MODELS = ["request_echo", "echo_ensemble", "echo_caller"]
HEADERS = {"my_header": "its value", "other": "not for models"}


class Plugin(InferenceServerClientPlugin):
    """Adds a header to each request, as those for authentication do."""

    def __call__(self, request):
        request.headers["my_plugin"] = "of a plug-in"


def inputs(module):
    tensor = module.InferInput("x", [1], "INT32")
    tensor.set_data_from_numpy(np.array([1], dtype=np.int32))
    return [tensor]


def parameters(result):
    lines = [line.decode() for line in result.as_numpy("seen")]
    (found,) = [line for line in lines if line.startswith("parameters ")]
    return found.removeprefix("parameters ")


def ok(name, got, want):
    assert got == want, f"{name}: {got} and not {want}"
    print("ok", name)


def refused(name, call):
    try:
        call()
    except InferenceServerException as error:
        return ok(name, error.message(), "Header 'sequence_id' is reserved for Triton usage and cannot be forwarded.")
    raise AssertionError(f"{name}: not refused")


# The clients write fields of their own into the dictionary that they are given.
def unary(name, module, client):
    for model in MODELS:
        seen = parameters(client.infer(model, inputs(module), headers=dict(HEADERS)))
        ok(f"{name} {model}", seen, '{"my_header": "its value"}')
    own = client.infer("request_echo", inputs(module), headers=dict(HEADERS), parameters={"a": 1, "my_header": "own"})
    ok(f"{name} beside a request's own", parameters(own), '{"a": 1, "my_header": "its value"}')
    refused(f"{name} reserved", lambda: client.infer("request_echo", inputs(module), headers={"sequence_id": "1"}))
    client.register_plugin(Plugin())
    seen = parameters(client.infer("request_echo", inputs(module)))
    ok(f"{name} plug-in", seen, '{"my_plugin": "of a plug-in"}')
    client.unregister_plugin()


async def unary_aio(name, module, client):
    seen = parameters(await client.infer("request_echo", inputs(module), headers=dict(HEADERS)))
    ok(f"{name} request_echo", seen, '{"my_header": "its value"}')
    client.register_plugin(Plugin())
    seen = parameters(await client.infer("request_echo", inputs(module), headers=dict(HEADERS)))
    ok(f"{name} plug-in", seen, '{"my_header": "its value", "my_plugin": "of a plug-in"}')
    await client.close()


def stream(client):
    answers = queue.Queue()
    client.start_stream(lambda result, error: answers.put((result, error)), headers=HEADERS)
    for _ in range(2):
        client.async_stream_infer("request_echo", inputs(grpc))
        result, error = answers.get(timeout=20)
        ok("stream", error or parameters(result), '{"my_header": "its value"}')
    client.stop_stream()
    client.start_stream(lambda result, error: answers.put((result, error)), headers={"sequence_id": "1"})
    client.async_stream_infer("request_echo", inputs(grpc))
    result, error = answers.get(timeout=20)
    want = "Header 'sequence_id' is reserved for Triton usage and cannot be forwarded."
    ok("stream reserved", error.message() if error else result, want)
    client.stop_stream()


def main(http_url, grpc_url):
    unary("http", http, http.InferenceServerClient(http_url))
    unary("grpc", grpc, grpc.InferenceServerClient(grpc_url))
    stream(grpc.InferenceServerClient(grpc_url))

    async def both():
        await unary_aio("http aio", http_aio, http_aio.InferenceServerClient(http_url))
        await unary_aio("grpc aio", grpc_aio, grpc_aio.InferenceServerClient(grpc_url))

    asyncio.run(both())


main(*sys.argv[1:])
