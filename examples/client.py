#!/usr/bin/env python3
"""A client of the inference protocol with Python's own library alone: tensors as binary data over HTTP.

    deuteron serve examples/models
    python3 examples/client.py localhost:8000

asks the model `digits` which digits are on the scans that it was not trained on.
"""

import http.client
import json
import struct
import sys
from pathlib import Path

# `struct` codes of an element of each datatype; a string has its length before it.
CODES = {"BOOL": "?", "INT8": "b", "UINT8": "B", "INT16": "h", "UINT16": "H", "INT32": "i", "UINT32": "I"}
CODES |= {"INT64": "q", "UINT64": "Q", "FP16": "e", "FP32": "f", "FP64": "d"}


def pack(datatype, values):
    """The elements of a tensor as bytes."""
    if datatype != "BYTES":
        return struct.pack(f"<{len(values)}{CODES[datatype]}", *values)
    texts = [value.encode() if isinstance(value, str) else value for value in values]
    return b"".join(struct.pack("<I", len(text)) + text for text in texts)


def unpack(datatype, data):
    """The elements of a tensor, flat."""
    if datatype != "BYTES":
        return [value for (value,) in struct.iter_unpack(f"<{CODES[datatype]}", data)]
    values, at = [], 0
    while at < len(data):
        (size,) = struct.unpack_from("<I", data, at)
        values.append(data[at + 4 : at + 4 + size])
        at += 4 + size
    return values


class Client:
    """One connection to a server."""

    def __init__(self, address):
        self.connection = http.client.HTTPConnection(address, timeout=60)

    def infer(self, model, inputs):
        """Runs a model. `inputs` are (datatype, shape, values) by name, the answer is (shape, values) by name."""
        datas = [pack(datatype, values) for datatype, _, values in inputs.values()]
        tensors = [
            {"name": name, "datatype": datatype, "shape": shape, "parameters": {"binary_data_size": len(data)}}
            for (name, (datatype, shape, _)), data in zip(inputs.items(), datas)
        ]
        head = json.dumps({"inputs": tensors, "parameters": {"binary_data_output": True}}).encode()
        fields = {"Inference-Header-Content-Length": str(len(head))}
        self.connection.request("POST", f"/v2/models/{model}/infer", head + b"".join(datas), fields)
        reply = self.connection.getresponse()
        body = reply.read()
        if reply.status != 200:
            raise RuntimeError(f"{reply.status}: {json.loads(body)['error']}")
        at = int(reply.getheader("Inference-Header-Content-Length", len(body)))
        outputs = {}
        for output in json.loads(body[:at])["outputs"]:
            size = output.get("parameters", {}).get("binary_data_size", 0)
            outputs[output["name"]] = (output["shape"], unpack(output["datatype"], body[at : at + size]))
            at += size
        return outputs


def main():
    client = Client(sys.argv[1] if len(sys.argv) > 1 else "localhost:8000")
    data = (Path(__file__).parent / "models/digits/held_out.bin").read_bytes()
    scans = [data[at : at + 65] for at in range(0, len(data), 65)]
    right = 0
    for begin in range(0, len(scans), 60):
        batch = scans[begin : begin + 60]
        pixels = [float(pixel) for scan in batch for pixel in scan[:64]]
        shape, values = client.infer("digits", {"pixels": ("FP32", [len(batch), 64], pixels)})["probabilities"]
        rows = [values[at : at + shape[1]] for at in range(0, len(values), shape[1])]
        right += sum(row.index(max(row)) == scan[64] for row, scan in zip(rows, batch))
    print(f"right on {right} of {len(scans)} scans")


if __name__ == "__main__":
    main()
