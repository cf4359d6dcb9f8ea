"""Runs a model by clients that openapi-python-client has generated: of the server, and of the model `digits`.

Arguments: the address of the server, and the file with a request.
"""

import json
import sys

import model_client
import server_client
from model_client.api.inference import generate as model_generate
from model_client.api.inference import infer as model_infer
from model_client.models import ModelGenerateRequest, ModelInferRequest
from server_client.api.health import model_ready, server_ready
from server_client.api.inference import infer
from server_client.api.metadata import model_metadata
from server_client.api.statistics import model_statistics
from server_client.models import Error, InferRequest


def check(what, is_right):
    print("ok" if is_right else "WRONG", what)


address, file = sys.argv[1:]
with open(file) as text:
    request = json.load(text)
pixels = request["inputs"][0]["data"]
server = server_client.Client(base_url=address)
model = model_client.Client(base_url=address)

check("ready", server_ready.sync(client=server).ready and model_ready.sync("digits", client=server).ready)
metadata = model_metadata.sync("digits", client=server)
check("metadata", metadata.inputs[0].datatype == "FP32" and metadata.inputs[0].shape == [-1, 64])
answer = infer.sync("digits", client=server, body=InferRequest.from_dict(request))
check("infer", answer.outputs[0].data[0].endswith(":seven"))
statistics = model_statistics.sync("digits", client=server)
check("statistics", statistics.model_stats[0].inference_stats["success"].count == 1)
check("error", isinstance(model_metadata.sync("none", client=server), Error))
body = ModelInferRequest.from_dict({"inputs": request["inputs"]})
answer = model_infer.sync(client=model, body=body)
check("infer of the model", len(answer.outputs[0].data) == 10)
answer = model_generate.sync(client=model, body=ModelGenerateRequest(pixels=[pixels]))
check("generate of the model", max(range(10), key=lambda index: answer.probabilities[0][index]) == 7)
