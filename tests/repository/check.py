"""Model control as tritonclient does it, over HTTP and over gRPC.

    python check.py --http HOST:PORT --grpc HOST:PORT --model model.onnx

The server is started with --model-control-mode=explicit on a repository that holds `plain` (identity, version 1) and
`many` (identity, versions 1 and 2), and nothing is loaded. Prints `ok NAME` for each check, exits 1 at the first that
fails.
"""

import argparse
import json
import os
import threading
import time

os.environ["no_proxy"] = os.environ["NO_PROXY"] = "*"

import grpc
import numpy
import tritonclient.grpc as triton_grpc
import tritonclient.http as triton_http
from grpc_health.v1 import health_pb2, health_pb2_grpc
from tritonclient.utils import InferenceServerException

CHECKS = []


def check(function):
    CHECKS.append(function)
    return function


def index(client):
    entries = client.get_model_repository_index()
    if not isinstance(entries, list):
        entries = [
            {key: getattr(entry, key) for key in ("name", "version", "state", "reason") if getattr(entry, key)}
            for entry in entries.models
        ]
    return sorted(" ".join(entry.get(key, "") for key in ("name", "version", "state", "reason")).strip() for entry in entries)


def wait_index(client, want):
    end = time.time() + 20
    while index(client) != want:
        assert time.time() < end, (index(client), want)
        time.sleep(0.01)


def refused(call, text, code=None):
    try:
        call()
    except InferenceServerException as error:
        assert text in error.message(), error
        assert code is None or code in str(error.status()), error
    else:
        raise AssertionError(f"{text!r} was expected")


def infer(kind, client, model, version=""):
    tensor = kind.InferInput("INPUT0", [1, 2], "FP32")
    tensor.set_data_from_numpy(numpy.array([[1.5, -2.0]], dtype=numpy.float32))
    answer = client.infer(model, [tensor], model_version=version)
    assert (answer.as_numpy("OUTPUT0") == [[1.5, -2.0]]).all()
    response = answer.get_response()
    return response["model_version"] if isinstance(response, dict) else response.model_version


def digits(kind, client, model):
    name = client.get_model_metadata(model, as_json=True) if kind is triton_grpc else client.get_model_metadata(model)
    shape = [int(size) for size in name["inputs"][0]["shape"]]
    shape = [1 if size < 0 else size for size in shape]
    tensor = kind.InferInput(name["inputs"][0]["name"], shape, "FP32")
    tensor.set_data_from_numpy(numpy.zeros(shape, dtype=numpy.float32))
    return client.infer(model, [tensor]).as_numpy(name["outputs"][0]["name"])


@check
def load_index_unload(kind, client, arguments):
    wait_index(client, ["many", "plain"])
    client.load_model("plain")
    assert client.is_model_ready("plain") and infer(kind, client, "plain") == "1"
    assert index(client) == ["many", "plain 1 READY"]
    client.load_model("many")
    assert infer(kind, client, "many") == "2" and infer(kind, client, "many", "1") == "1"
    client.unload_model("many")
    assert not client.is_model_ready("many")
    wait_index(client, ["many 1 UNAVAILABLE unloaded", "many 2 UNAVAILABLE unloaded", "plain 1 READY"])
    refused(lambda: infer(kind, client, "many"), "Request for unknown model: 'many' has no available versions")
    refused(lambda: infer(kind, client, "many", "1"), "Request for unknown model: 'many' version 1 is not at ready state")
    client.unload_model("plain", unload_dependents=True)
    client.unload_model("no_such_model")
    assert client.is_server_ready()


@check
def refusals(kind, client, arguments):
    text = "failed to load 'no_such_model', failed to poll from model repository"
    refused(lambda: client.load_model("no_such_model"), text, None if kind is triton_http else "NOT_FOUND")
    refused(lambda: client.load_model("plain", config="{"), "failed to load 'plain', failed to poll from model repository")
    content = {"file:1/model.onnx": b"no model"}
    text = "failed to load 'plain', failed to poll from model repository"
    refused(lambda: client.load_model("plain", files=content), text)
    config = json.dumps({"backend": "onnxruntime"})
    text = "load failed for model 'brought': version 1 is at UNAVAILABLE state: "
    refused(lambda: client.load_model("brought", config=config, files=content), text)
    with open(arguments.model, "rb") as file:
        content = {"file:1/model.onnx": file.read()}
    strange = {"strange": {"data_type": "TYPE_FP32", "dims": [1], "zero_data": True}}
    warm_up = [{"name": "cold", "batch_size": 1, "inputs": strange}]
    config = json.dumps({"backend": "onnxruntime", "model_warmup": warm_up})
    text = (
        "load failed for model 'brought': version 1 is at UNAVAILABLE state: Invalid argument: failed to run warmup "
        "sample 'cold': unexpected inference input 'strange' for model 'brought'"
    )
    refused(lambda: client.load_model("brought", config=config, files=content), text)
    config = json.dumps({"backend": "onnxruntime"})
    refused(lambda: client.load_model("brought", config=config, files={"file:../x": b""}), "is not a file path")


@check
def a_configuration_of_the_clients(kind, client, arguments):
    def rows_max():
        config = client.get_model_config("plain") if kind is triton_http else client.get_model_config("plain", as_json=True)["config"]
        return config.get("max_batch_size")

    client.load_model("plain")
    assert rows_max() == 8
    tensor = {"data_type": "TYPE_FP32", "dims": [-1]}
    config = {
        "backend": "identity",
        "max_batch_size": 3,
        "input": [{"name": "INPUT0", **tensor}],
        "output": [{"name": "OUTPUT0", **tensor}],
    }
    client.load_model("plain", config=json.dumps(config))
    assert rows_max() == 3 and infer(kind, client, "plain") == "1"
    client.load_model("plain")
    assert rows_max() == 8
    client.unload_model("plain")


@check
def files_of_the_clients(kind, client, arguments):
    with open(arguments.model, "rb") as file:
        content = file.read()
    config = json.dumps({"backend": "onnxruntime", "version_policy": {"all": {}}})
    client.load_model("brought", config=config, files={"file:1/model.onnx": content, "file:4/model.onnx": content})
    assert [line for line in index(client) if line.startswith("brought")] == ["brought 1 READY", "brought 4 READY"]
    assert digits(kind, client, "brought").shape[0] == 1
    client.unload_model("brought")


@check
def loads_while_requests_run(kind, client, arguments):
    """A client of its own sends on and on, while the model is loaded again and again; nothing fails."""
    client.load_model("plain")
    over, failures, counts = threading.Event(), [], []

    def send():
        own = kind.InferenceServerClient(arguments.http if kind is triton_http else arguments.grpc)
        count = 0
        while not over.is_set():
            try:
                infer(kind, own, "plain")
                count += 1
            except Exception as error:
                failures.append(error)
        counts.append(count)

    threads = [threading.Thread(target=send) for _ in range(2)]
    [thread.start() for thread in threads]
    config = client.get_model_config("plain") if kind is triton_http else client.get_model_config("plain", as_json=True)["config"]
    for rows in range(1, 21):
        config["max_batch_size"] = rows
        client.load_model("plain", config=json.dumps(config))
    over.set()
    [thread.join() for thread in threads]
    assert not failures and sum(counts) > 20, (failures[:3], counts)
    client.unload_model("plain")


def health(arguments):
    """`Watch` tells when a load makes the server not ready, and when it is over."""
    client = triton_http.InferenceServerClient(arguments.http)
    with grpc.insecure_channel(arguments.grpc) as channel:
        watch = health_pb2_grpc.HealthStub(channel).Watch(health_pb2.HealthCheckRequest())
        states = health_pb2.HealthCheckResponse
        assert next(watch).status == states.SERVING
        tensor = {"data_type": "TYPE_FP32", "dims": [-1]}
        config = {
            "backend": "identity",
            "input": [{"name": "INPUT0", **tensor}],
            "output": [{"name": "OUTPUT0", **tensor}],
            "parameters": {"creation_delay_sec": {"string_value": "1"}},
        }
        thread = threading.Thread(target=lambda: client_of(arguments).load_model("plain", config=json.dumps(config)))
        client.unload_model("plain")
        client.unload_model("many")
        wait_index(client, [line for line in index(client) if "UNLOADING" not in line])
        thread.start()
        assert next(watch).status == states.NOT_SERVING
        assert next(watch).status == states.SERVING
        thread.join()
        assert client.is_model_ready("plain")


def client_of(arguments):
    return triton_http.InferenceServerClient(arguments.http)


def main():
    parser = argparse.ArgumentParser()
    for name in ("--http", "--grpc", "--model"):
        parser.add_argument(name, required=True)
    arguments = parser.parse_args()
    # Only the first of the two finds that nothing was ever loaded.
    first = True
    for kind, address in ((triton_http, arguments.http), (triton_grpc, arguments.grpc)):
        client = kind.InferenceServerClient(address)
        for function in CHECKS:
            if not first and function is load_index_unload:
                load_again(kind, client)
            else:
                function(kind, client, arguments)
            print(f"ok {kind.__name__} {function.__name__}", flush=True)
        first = False
    health(arguments)
    print("ok health")


def load_again(kind, client):
    client.load_model("many")
    assert "many 1 READY" in index(client) and "many 2 READY" in index(client)
    client.unload_model("many")
    end = time.time() + 20
    while "many 2 UNAVAILABLE unloaded" not in index(client):
        assert time.time() < end, index(client)
        time.sleep(0.01)


if __name__ == "__main__":
    main()
