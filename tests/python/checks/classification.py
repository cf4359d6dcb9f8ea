"""The classification extension: the best classes as `value:index[:label]`, in every encoding."""

import json

import numpy as np

from .registry import KINDS, check, decode, equal

WAYS = [(kind, "binary") for kind in KINDS] + [("http", "json"), ("http_aio", "json")]
# The third and fourth are equal: the lower index is first.
FRUIT = [[1.5, 0.25, 3.3, 3.3], [-0.5, 2.75, -1.25, 0.1]]


def best(client, model, datatype, rows, count, binary=True):
    """The output of an identity model as `(datatype, shape, rows of strings)`."""
    array = np.array(rows, dtype={"FP32": np.float32, "INT32": np.int32}[datatype])
    output = client.output("OUTPUT0", binary, class_count=count)
    result = client.infer(model, [client.tensor("INPUT0", datatype, array, binary)], outputs=[output])
    (described,) = client.response(result)["outputs"]
    texts = result.as_numpy("OUTPUT0")
    strings = np.vectorize(lambda text: text if isinstance(text, str) else text.decode(), otypes=[object])
    return described["datatype"], list(texts.shape), strings(texts).tolist()


@check(WAYS)
def best_two_of_each_row(server, way):
    with server.client(way[0]) as client:
        got = best(client, "classify", "FP32", FRUIT, 2, way[1] == "binary")
        want = [["3.3:2:cherry", "3.3:3:pickle"], ["2.75:1:banana", "0.1:3:pickle"]]
        equal(got, ("BYTES", [2, 2], want))


@check(WAYS)
def without_a_batch_axis(server, way):
    with server.client(way[0]) as client:
        got = best(client, "classify_nobatch", "FP32", FRUIT[0], 3, way[1] == "binary")
        equal(got, ("BYTES", [3], ["3.3:2:cherry", "3.3:3:pickle", "1.5:0:apple"]))


@check(WAYS)
def without_labels(server, way):
    with server.client(way[0]) as client:
        got = best(client, "classify_int", "INT32", [[1, 5, 10, -4]], 4, way[1] == "binary")
        equal(got, ("BYTES", [1, 4], [["10:2", "5:1", "1:0", "-4:3"]]))


@check(WAYS)
def more_than_there_are(server, way):
    with server.client(way[0]) as client:
        got = best(client, "classify", "FP32", FRUIT[1:], 100, way[1] == "binary")
        want = ["2.75:1:banana", "0.1:3:pickle", "-0.5:0:apple", "-1.25:2:cherry"]
        equal(got, ("BYTES", [1, 4], [want]))


@check()
def nan_is_never_better(server):
    with server.client("grpc") as client:
        rows = [[np.nan, 1.5, -np.inf, 2.5]]
        _, _, (texts,) = best(client, "classify", "FP32", rows, 4)
        equal(
            [text.split(":", 1)[1] for text in texts],
            ["3:pickle", "1:banana", "2:cherry", "0:apple"],
        )


@check()
def all_equal_are_in_order(server):
    with server.client("http") as client:
        _, _, (texts,) = best(client, "classify_int", "INT32", [[6, 6, 6, 6]], 4)
        equal(texts, ["6:0", "6:1", "6:2", "6:3"])


@check()
def classified_body_to_the_letter(server):
    request = {
        "inputs": [{"name": "INPUT0", "datatype": "FP32", "shape": [1, 4], "data": FRUIT[1]}],
        "outputs": [{"name": "OUTPUT0", "parameters": {"classification": 1}}],
    }
    _, _, body = server.infer("classify", request)
    output = '{"name":"OUTPUT0","datatype":"BYTES","shape":[1,1],"data":["2.75:1:banana"]}'
    equal(body.decode(), f'{{"model_name":"classify","model_version":"1","outputs":[{output}]}}')


@check()
def classified_in_binary_data(server):
    request = {
        "inputs": [{"name": "INPUT0", "datatype": "FP32", "shape": [1, 4], "data": FRUIT[1]}],
        "outputs": [{"name": "OUTPUT0", "parameters": {"classification": 1, "binary_data": True}}],
    }
    answer, tail = decode(server.infer("classify", request))
    equal(tail, b"\x0d\0\0\x002.75:1:banana")
    equal(json.dumps(answer["outputs"][0]["parameters"]), '{"binary_data_size": 17}')


@check()
def one_output_classified_and_one_not(server):
    request = {
        "inputs": [
            {"name": "INPUT0", "datatype": "FP32", "shape": [1, 2], "data": [0.5, 2.5]},
            {"name": "INPUT1", "datatype": "INT32", "shape": [1, 2], "data": [3, 4]},
        ],
        "outputs": [{"name": "OUTPUT0", "parameters": {"classification": 1}}, {"name": "OUTPUT1"}],
    }
    answer, _ = decode(server.infer("identity_two", request))
    by_name = {output["name"]: output["data"] for output in answer["outputs"]}
    equal(by_name, {"OUTPUT0": ["2.5:1"], "OUTPUT1": [3, 4]})
