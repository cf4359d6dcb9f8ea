"""Trace settings by tritonclient over HTTP and gRPC: the steps of NVIDIA's own test of the extension."""

import sys

import tritonclient.grpc as grpcclient
import tritonclient.http as httpclient
from tritonclient.utils import InferenceServerException

FILE, HTTP, GRPC = sys.argv[1:4]


def settings(rate="1", count="-1", frequency="0", level=("TIMESTAMPS",)):
    return {
        "trace_level": list(level),
        "trace_rate": rate,
        "trace_count": count,
        "log_frequency": frequency,
        "trace_file": FILE,
        "trace_mode": "triton",
    }


class Http:
    def __init__(self):
        self.client = httpclient.InferenceServerClient(HTTP)

    def get(self, model=None):
        return self.client.get_trace_settings(model_name=model)

    def update(self, model=None, **change):
        return self.client.update_trace_settings(model_name=model, settings=change)


class Grpc:
    def __init__(self):
        self.client = grpcclient.InferenceServerClient(GRPC)

    def told(self, response):
        values = {name: list(setting.value) for name, setting in response.settings.items()}
        return {name: value if name == "trace_level" else value[0] for name, value in values.items()}

    def get(self, model=None):
        return self.told(self.client.get_trace_settings(model_name=model))

    def update(self, model=None, **change):
        return self.told(self.client.update_trace_settings(model_name=model, settings=change))


def refused(call, text):
    try:
        call()
    except InferenceServerException as error:
        assert text in error.message(), error
    else:
        raise AssertionError(f"it was taken: {text}")


def check(client, other):
    clear = dict(trace_level=None, trace_rate=None, trace_count=None, log_frequency=None)
    client.update("identity", **clear)
    client.update(**clear)
    assert client.get() == settings(), client.get()
    assert client.get("identity") == settings()
    refused(lambda: client.get("nope"), "Request for unknown model : nope")
    refused(lambda: client.update("nope", trace_rate="2"), "Request for unknown model : nope")
    refused(lambda: client.update(trace_file="x"), "trace file location can not be updated through network protocol")
    refused(lambda: client.update(trace_rate="abc"), "Unable to parse 'trace_rate', got: abc")
    refused(lambda: client.update(trace_level=["OFF", "TENSORS"]), "Expect only one trace level 'OFF' is specified")
    both = settings(level=["TIMESTAMPS", "TENSORS"])
    assert client.update(trace_level=["TIMESTAMPS", "TENSORS"]) == both
    assert other.get("identity") == both, "the model follows"
    client.update(**clear)
    client.update("identity", trace_rate="12", log_frequency="34")
    client.update(trace_rate="56", trace_count="78", trace_level=["OFF"])
    want = settings(level=["OFF"])
    assert client.update(trace_rate=None, trace_count=None) == want
    assert client.get("identity") == settings("12", "-1", "34", ["OFF"])
    assert client.update("identity", trace_rate=None, trace_level=None) == settings("1", "-1", "34", ["OFF"])
    assert other.get() == want
    client.update("identity", **clear)
    client.update(**clear)
    assert other.get("identity") == settings()


check(Http(), Grpc())
check(Grpc(), Http())
print("ok")
