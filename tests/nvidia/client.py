"""Stands for the two example clients in C++ that the suite of traces runs: one request to the model `simple`, over the protocol of the
name by which it is called, `simple_http_infer_client` or `simple_grpc_infer_client`."""

import sys

import numpy as np

if "grpc" in sys.argv[0]:
    import tritonclient.grpc as protocol

    url = "localhost:8001"
else:
    import tritonclient.http as protocol

    url = "localhost:8000"

inputs = []
for name in ("INPUT0", "INPUT1"):
    tensor = protocol.InferInput(name, [1, 16], "INT32")
    tensor.set_data_from_numpy(np.arange(16, dtype=np.int32).reshape(1, 16))
    inputs.append(tensor)
answer = protocol.InferenceServerClient(url).infer("simple", inputs)
assert answer.as_numpy("OUTPUT0").tolist() == [list(range(0, 32, 2))]
