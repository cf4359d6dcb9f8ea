"""A client of the Open Inference Protocol in Python, with tritonclient, over gRPC."""

import sys
from pathlib import Path

import numpy
import tritonclient.grpc as triton
from tritonclient.utils import InferenceServerException

# gRPC itself tries again. A busy server says when, in grpc-retry-pushback-ms, which goes before the backoff here.
RETRIES = """{"methodConfig": [{"name": [{"service": "inference.GRPCInferenceService"}], "retryPolicy": {
    "maxAttempts": 3, "initialBackoff": "1s", "maxBackoff": "5s", "backoffMultiplier": 2,
    "retryableStatusCodes": ["UNAVAILABLE", "RESOURCE_EXHAUSTED"]}}]}"""

address = sys.argv[1] if len(sys.argv) > 1 else "localhost:8001"
# One connection for all threads: make one client and share it. TLS is ssl=True.
client = triton.InferenceServerClient(address, channel_args=[("grpc.service_config", RETRIES)])

pixels = numpy.fromfile(Path(__file__).parents[2] / "models/digits/raw.bin", dtype="<f4").reshape(1, 64)
scan = triton.InferInput("pixels", [1, 64], "FP32")
scan.set_data_from_numpy(pixels)

# The timeout covers all attempts. The server knows it, and drops requests that would be late. A key is
# headers={"authorization": "Bearer …"}.
best = triton.InferRequestedOutput("probabilities", class_count=3)
answer = client.infer("digits", [scan], outputs=[best], client_timeout=10)
score, _, label = answer.as_numpy("probabilities").flat[0].decode().split(":", 2)
print(label, score)

values = client.infer("digits", [scan], client_timeout=10).as_numpy("probabilities")
print(f"probabilities: {values.size} values, the largest is {values.argmax()}")

try:
    client.infer("nope", [scan], client_timeout=10)
except InferenceServerException as error:
    # StatusCode.NOT_FOUND, which is 404 over HTTP.
    print(f"{error.status().removeprefix('StatusCode.')}: {error.message()}")
