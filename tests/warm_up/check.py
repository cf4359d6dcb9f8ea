"""Loads a model whose new version cannot answer its warm-up samples, by tritonclient.

    python check.py refused HTTP GRPC     the load is refused with the reason, and version 1 serves on
    python check.py loaded HTTP GRPC      the load succeeds, and version 2 serves
"""

import os
import sys

os.environ["no_proxy"] = os.environ["NO_PROXY"] = "*"

import numpy
import tritonclient.grpc
import tritonclient.http
from tritonclient.utils import InferenceServerException

WHY = "failed to run warmup sample 'rows'"


def look_up(kind, client, row):
    tensor = kind.InferInput("ROW", [1, 1], "INT32")
    tensor.set_data_from_numpy(numpy.array([[row]], dtype=numpy.int32))
    answer = client.infer("m", [tensor])
    version = answer.get_response()
    version = version["model_version"] if isinstance(version, dict) else version.model_version
    return version, float(answer.as_numpy("VALUE")[0][0])


def states(kind, client):
    index = client.get_model_repository_index()
    if kind is tritonclient.grpc:
        return {model.version: (model.state, model.reason) for model in index.models}
    return {model["version"]: (model["state"], model.get("reason", "")) for model in index}


def refused(kind, client):
    try:
        client.load_model("m")
        raise AssertionError("it was loaded")
    except InferenceServerException as error:
        text = error.message()
        assert "load failed for model 'm': version 2 is at UNAVAILABLE state: " in text and WHY in text, text
    assert look_up(kind, client, 3) == ("1", 13.0)
    assert client.is_model_ready("m") and client.is_model_ready("m", "1") and not client.is_model_ready("m", "2")
    now = states(kind, client)
    assert now["1"][0] == "READY" and now["2"][0] == "UNAVAILABLE" and WHY in now["2"][1], now


def loaded(kind, client):
    client.load_model("m")
    assert look_up(kind, client, 3) == ("2", 23.0)
    assert states(kind, client)["2"][0] == "READY"


def main(verb, *addresses):
    for kind, address in zip((tritonclient.http, tritonclient.grpc), addresses):
        {"refused": refused, "loaded": loaded}[verb](kind, kind.InferenceServerClient(address))


main(*sys.argv[1:])
