"""Holds the server on TensorFlow's library, and on OpenVINO, to TensorFlow in Python: SavedModels and frozen graphs made
here, with variables, several signatures, strings, every datatype and open shapes. `hold_tensorflow.py PROGRAM FOLDER`."""

import os
import pathlib
import sys

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
sys.dont_write_bytecode = True

import numpy as np  # noqa: E402
import tensorflow as tf  # noqa: E402
from tensorflow.python.framework.convert_to_constants import convert_variables_to_constants_v2 as freeze  # noqa: E402

sys.path.insert(0, str(pathlib.Path(__file__).parent))
from served import Refused, Server, write  # noqa: E402

program, folder = sys.argv[1], pathlib.Path(sys.argv[2])
repository = folder / "models"
random = np.random.default_rng(7)


class Perceptron(tf.Module):
    def __init__(self):
        self.first = tf.Variable(random.standard_normal((16, 64), np.float32))
        self.second = tf.Variable(random.standard_normal((64, 4), np.float32))

    @tf.function(input_signature=[tf.TensorSpec([None, 16], tf.float32, name="x")])
    def call(self, x):
        hidden = tf.nn.relu(x @ self.first)
        return {"y": hidden @ self.second, "hidden": hidden}

    # Names in the order of letters are not the order of the arguments.
    @tf.function(input_signature=[tf.TensorSpec([None, 3], tf.float32, name=name) for name in ("b", "a")])
    def other(self, b, a):
        return {"z_first": b - a, "a_last": a * 2.0 + b}


class Texts(tf.Module):
    @tf.function(input_signature=[tf.TensorSpec([None], tf.string, name="text")])
    def call(self, text):
        return {"upper": tf.strings.upper(text), "size": tf.strings.length(text), "same": text}


class Count(tf.Module):
    """Keeps what it was given: a model with a state."""

    def __init__(self):
        self.last = tf.Variable("", dtype=tf.string, shape=tf.TensorShape(None))
        self.sum = tf.Variable(0.0)

    @tf.function(input_signature=[tf.TensorSpec([1], tf.string, name="text"), tf.TensorSpec([1], tf.float32, name="n")])
    def call(self, text, n):
        before = tf.identity(self.last)
        self.last.assign(text)
        return {"before": tf.reshape(before, [-1])[:1], "sum": tf.reshape(self.sum.assign_add(n[0]), [1])}


class Numbers(tf.Module):
    """A state without strings, which OpenVINO reads and leaves out."""

    def __init__(self):
        self.sum = tf.Variable(0.0)

    @tf.function(input_signature=[tf.TensorSpec([1], tf.float32, name="n")])
    def call(self, n):
        return {"sum": tf.reshape(self.sum.assign_add(n[0]), [1])}


def save(name, model, signatures, config=""):
    tf.saved_model.save(model, str(write(repository, name, config) / "model.savedmodel"), signatures=signatures)


def parameter(key, value):
    return f"parameters {{ key: '{key}' value {{ string_value: '{value}' }} }}"


TF = "platform: 'tensorflow_savedmodel' "
model, texts, count, numbers = Perceptron(), Texts(), Count(), Numbers()
save("numbers", numbers, {"serving_default": numbers.call})
save("mlp", model, {"serving_default": model.call, "other": model.other})
save("two", model, {"serving_default": model.other})
save("only_other", model, {"other": model.other})
save("signature", model, {"serving_default": model.call, "other": model.other}, TF + parameter("TF_SIGNATURE_DEF", "other"))
threads = [("TF_NUM_INTRA_THREADS", "1"), ("TF_NUM_INTER_THREADS", "1"), ("TF_USE_PER_SESSION_THREADS", "true")]
save("threads", model, {"serving_default": model.call}, TF + "".join(parameter(*one) for one in threads))
save("texts", texts, {"serving_default": texts.call})
save("count", count, {"serving_default": count.call}, TF + "max_batch_size: 0 input [ "
     "{ name: 'text' data_type: TYPE_STRING dims: 1 }, { name: 'n' data_type: TYPE_FP32 dims: 1 } ] output [ "
     "{ name: 'before' data_type: TYPE_STRING dims: 1 }, { name: 'sum' data_type: TYPE_FP32 dims: 1 } ]")  # fmt: skip
TYPES = [tf.bool, tf.uint8, tf.uint16, tf.uint32, tf.uint64, tf.int8, tf.int16, tf.int32, tf.int64, tf.float16, tf.float32,
         tf.float64, tf.bfloat16]  # fmt: skip
for kind in TYPES:
    turn = tf.function(lambda x: {"y": tf.concat([x, tf.reverse(x, [1])], 1)})
    turn = turn.get_concrete_function(tf.TensorSpec([None, 5], kind, name="x"))
    save(f"type_{kind.name}", tf.Module(), {"serving_default": turn})
concrete = freeze(model.call.get_concrete_function())
names = {"y": concrete.outputs[1].op.name, "hidden": concrete.outputs[0].op.name}
graph = f"""platform: 'tensorflow_graphdef' max_batch_size: 8 input {{ name: 'x' data_type: TYPE_FP32 dims: 16 }} output [
    {{ name: '{names["y"]}' data_type: TYPE_FP32 dims: 4 }}, {{ name: '{names["hidden"]}' data_type: TYPE_FP32 dims: 64 }} ]"""
(write(repository, "graph", graph) / "model.graphdef").write_bytes(concrete.graph.as_graph_def().SerializeToString())
wrong = TF + "max_batch_size: 8 input { name: 'x' data_type: TYPE_FP32 dims: 17 } output { name: 'y' data_type: TYPE_FP32 dims: 4 }"
save("wrong", model, {"serving_default": model.call}, wrong)

PERCEPTRONS = ("mlp", "threads", "graph")
checked = 0


def close(got, want, tolerance):
    global checked
    checked += 1
    want = np.asarray(want)
    assert got.shape == want.shape, (got.shape, want.shape)
    if want.dtype == object:
        assert got.tolist() == want.tolist(), (got, want)
    else:
        assert np.allclose(got.astype(np.float64), want.astype(np.float64), tolerance, tolerance), (got, want)


def hold(server, engine, tolerance):
    """Checks for both engines."""
    for name in PERCEPTRONS:
        if not (name == "threads" and engine == "openvino"):
            assert server.engine(name) == engine, (name, server.engine(name))
        port = names if name == "graph" else {"y": "y", "hidden": "hidden"}
        for rows in range(1, 9 if name == "graph" else 5):
            sample = random.standard_normal((rows, 16), np.float32)
            got, want = server.infer(name, {"x": sample}), model.call(tf.constant(sample))
            for key in ("y", "hidden"):
                close(got[port[key]], want[key].numpy(), tolerance)
    a, b = (random.standard_normal((2, 3), np.float32) for _ in "ab")
    want = model.other(b=tf.constant(b), a=tf.constant(a))
    for name in ("two", "signature", "only_other"):
        got = server.infer(name, {"a": a, "b": b})
        for key in ("z_first", "a_last"):
            close(got[key], want[key].numpy(), tolerance)
    for kind in TYPES:
        sample = tf.cast(tf.constant(random.integers(0, 2, (2, 5))), kind)
        raw = sample.numpy() if kind != tf.bfloat16 else sample.numpy().view(np.uint16)
        given = ("BF16", raw) if kind == tf.bfloat16 else raw
        got = server.infer(f"type_{kind.name}", {"x": given})["y"]
        want = np.concatenate([raw, raw[:, ::-1]], 1)
        assert got.dtype == want.dtype and (got == want).all(), kind
    reason = server.reason("wrong")
    assert "'x'" in reason and "17" in reason, reason


def hold_tensorflow(server):
    """Checks for TensorFlow alone."""
    given = np.array([["a"], [""], ["\u00e9" + "long " * 20]], np.object_)
    got, want = server.infer("texts", {"text": given}), texts.call(tf.constant(given[:, 0]))
    for key in ("upper", "size", "same"):
        close(got[key].reshape(-1), want[key].numpy(), 0)
    before, total = b"", 0.0
    for turn in range(50):
        text = (f"text {turn} " * (turn + 1)).encode()
        got = server.infer("count", {"text": np.array([text], np.object_), "n": np.array([turn], np.float32)})
        assert got["before"].tolist() == [before], (got["before"], before)
        total += turn
        close(got["sum"], np.array([total], np.float32), 0)
        before = text
    for turn in range(1, 9):
        got = server.infer("numbers", {"n": np.array([turn], np.float32)})
        close(got["sum"], np.array([turn * (turn + 1) / 2], np.float32), 0)
    for shape in ((1, 15), (9, 16)):
        try:
            server.infer("graph", {"x": np.zeros(shape, np.float32)})
            raise SystemExit(f"{shape} was taken")
        except Refused as error:
            assert str(error).startswith("400 "), error


server = Server(program, repository, "--backend-config=tensorflow,engine=tensorflow")
hold(server, "tensorflow", 1e-5)
hold_tensorflow(server)
server.stop()
print(f"{checked} outputs of {len(list(repository.iterdir()))} models as TensorFlow {tf.__version__} has them")
checked = 0
openvino = os.environ.get("OPENVINO_WHEEL")
if openvino:
    # Both are found: OpenVINO runs the models that it can, TensorFlow the rest.
    os.environ["INTEL_OPENVINO_DIR"] = openvino
    server = Server(program, repository)
    hold(server, "openvino", 1e-4)
    hold_tensorflow(server)
    engines = {name: server.engine(name) for name in ("two", "only_other", "signature", "texts", "count", "numbers")}
    assert engines["two"] == "openvino", engines
    assert {engines[name] for name in ("only_other", "signature", "texts", "count", "numbers")} == {"tensorflow"}, engines
    types = {kind.name: server.engine(f"type_{kind.name}") for kind in TYPES}
    server.stop()
    print(f"{checked} outputs on OpenVINO where it can; by datatype: {types}")
