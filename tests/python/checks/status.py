"""Health, readiness, metadata and model config."""

import json

from .registry import KINDS, check, equal, fails

UNKNOWN = "Request for unknown model: 'nope' is not found"
UNKNOWN_VERSION = "Request for unknown model: 'addsub' version 7 is not found"


@check(KINDS.keys())
def live_and_ready(server, kind):
    with server.client(kind) as client:
        equal(client.call("is_server_live"), True, "live")
        equal(client.call("is_server_ready"), True, "ready")


@check(KINDS.keys())
def model_ready(server, kind):
    with server.client(kind) as client:
        asked = [("addsub",), ("addsub", "1"), ("addsub", "7"), ("nope",), ("identity_bytes",)]
        got = [client.call("is_model_ready", *names) for names in asked]
        equal(got, [True, True, False, False, True])


@check(
    {
        "live": ("/v2/health/live", {"live": True}),
        "ready": ("/v2/health/ready", {"live": True, "ready": True}),
        "model": ("/v2/models/addsub/ready", {"name": "addsub", "ready": True}),
        "version": ("/v2/models/addsub/versions/1/ready", {"name": "addsub", "ready": True}),
    }
)
def health_body(server, row):
    path, want = row
    status, headers, body = server.request("GET", path)
    equal((status, headers["Content-Type"]), (200, "application/json"))
    equal(json.loads(body), want)


@check(KINDS.keys())
def server_metadata(server, kind):
    with server.client(kind) as client:
        got = client.document("get_server_metadata")
    assert got["name"] and got["version"], f"no name or version in {got}"
    missing = {"classification", "binary_tensor_data", "model_configuration"} - {*got["extensions"]}
    equal(missing, set(), "missing extensions")


@check(
    {
        "unknown path": ("GET", "/v2/nope", 404, "Not Found"),
        "version no number": ("GET", "/v2/models/addsub/versions/x", 404, "Not Found"),
        "readiness of no model": ("GET", "/v2/models/nope/ready", 404, UNKNOWN),
        "readiness of no version": ("GET", "/v2/models/addsub/versions/7/ready", 404, UNKNOWN_VERSION),
        "wrong verb": ("POST", "/v2/health/live", 405, "Method Not Allowed"),
        "infer is a POST": ("GET", "/v2/models/addsub/infer", 405, "Method Not Allowed"),
    }
)
def no_such_route(server, row):
    method, path, want_status, text = row
    status, _, body = server.request(method, path)
    equal((status, json.loads(body)), (want_status, {"error": text}))


def tensor_metadata(client, name, datatype, shape):
    shape = shape if client.is_http else [str(size) for size in shape]
    return {"name": name, "datatype": datatype, "shape": shape}


@check(KINDS.keys())
def model_metadata(server, kind):
    with server.client(kind) as client:
        names = ["INPUT0", "INPUT1", "OUTPUT0", "OUTPUT1"]
        tensors = [tensor_metadata(client, name, "INT32", [-1, 16]) for name in names]
        want = {
            "name": "addsub",
            "versions": ["1"],
            "platform": "onnxruntime_onnx",
            "inputs": tensors[:2],
            "outputs": tensors[2:],
        }
        equal(client.document("get_model_metadata", "addsub"), want)
        equal(client.document("get_model_metadata", "addsub", "1"), want)
        # Without batching there is no batch axis in the shape.
        got = client.document("get_model_metadata", "identity_nobatch")
        equal(got["inputs"], [tensor_metadata(client, "INPUT0", "FP32", [4])])


@check(KINDS.keys())
def model_metadata_of_the_unknown(server, kind):
    with server.client(kind) as client:
        status = client.status(404, "NOT_FOUND")
        fails(lambda: client.document("get_model_metadata", "nope"), status, UNKNOWN)
        fails(lambda: client.document("get_model_metadata", "addsub", "7"), status, UNKNOWN_VERSION)


@check(KINDS.keys())
def model_config(server, kind):
    with server.client(kind) as client:
        got = client.document("get_model_config", "classify")
        got = got if client.is_http else got["config"]
        equal((got["name"], got["max_batch_size"]), ("classify", 8))
        dims = [4] if client.is_http else ["4"]
        (tensor,), (output,) = got["input"], got["output"]
        want = ("INPUT0", "TYPE_FP32", dims)
        equal((tensor["name"], tensor["data_type"], tensor["dims"]), want)
        equal((output["name"], output["label_filename"]), ("OUTPUT0", "labels.txt"))


@check(KINDS.keys())
def model_config_of_the_unknown(server, kind):
    with server.client(kind) as client:
        status = client.status(404, "NOT_FOUND")
        fails(lambda: client.document("get_model_config", "nope"), status, UNKNOWN)
        fails(lambda: client.document("get_model_config", "addsub", "7"), status, UNKNOWN_VERSION)
