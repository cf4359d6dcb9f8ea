"""Effects of a configuration: shapes that the model does not have, one value a row, labels per output."""

import numpy as np

from .registry import KINDS, check, equal

ROWS = np.arange(6, dtype=np.float32).reshape(3, 2)


@check(KINDS.keys(), ["scalars", "scalars_generated"])
def one_value_a_row(server, kind, model):
    values = np.array([[1.0], [2.5], [-4.0]], dtype=np.float32)
    with server.client(kind) as client:
        metadata = client.document("get_model_metadata", model)
        equal([int(size) for size in metadata["inputs"][0]["shape"]], [-1, 1])
        result = client.infer(model, [client.tensor("x", "FP32", values)])
        equal(result.as_numpy("y"), values * 2)


@check(KINDS.keys())
def one_value_a_row_has_its_own_axis(server, kind):
    with server.client(kind) as client:
        flat = client.tensor("x", "FP32", np.ones(3, dtype=np.float32))
        try:
            client.infer("scalars", [flat])
        except Exception as error:
            assert "Expected [-1,1], got [3]." in str(error), error
        else:
            raise AssertionError("a shape without the last axis was answered")


@check(KINDS.keys())
def reshape_with_wildcards(server, kind):
    sent = np.arange(24, dtype=np.float32).reshape(2, 3, 2, 2)
    with server.client(kind) as client:
        result = client.infer("reshaped", [client.tensor("INPUT0", "FP32", sent)])
        equal(result.as_numpy("OUTPUT0"), sent.reshape(2, 1, 3, 2, 2))
        config = client.document("get_model_config", "reshaped")
        config = config.get("config", config)
        equal([int(size) for size in config["input"][0]["reshape"]["shape"]], [-1, 1, 2, -1])


@check(KINDS.keys())
def labels_per_output(server, kind):
    with server.client(kind) as client:
        tensors = [client.tensor(name, "FP32", ROWS) for name in ("INPUT0", "INPUT1")]
        outputs = [client.output(name, class_count=1) for name in ("OUTPUT0", "OUTPUT1", "OUTPUT2")]
        sent = tensors + [client.tensor("INPUT2", "FP32", ROWS)]
        result = client.infer("labelled", sent, outputs=outputs)
        got = [result.as_numpy(f"OUTPUT{index}")[0].tolist()[0] for index in range(3)]
        got = [text if isinstance(text, str) else text.decode() for text in got]
        equal([text.split(":")[1:] for text in got], [["1", "banana"], ["1", "dog"], ["1"]])
