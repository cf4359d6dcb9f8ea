"""Sequences, streams and decoupled models by tritonclient, and a real model whose state the server keeps.

    python check.py write REPOSITORY EXAMPLE     puts silero-vad's weights behind the example's configuration
    python check.py check HTTP GRPC              asks the server, prints `ok NAME` for each, exits 1 otherwise
"""

import asyncio
import importlib.util
import os
import shutil
import sys
import threading
import time

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), os.pardir, "python"))

from streams import Stream, check, equal, run, tensor

import numpy
import onnxruntime
import tritonclient.grpc
import tritonclient.grpc.aio
import tritonclient.http
from tritonclient.utils import InferenceServerException

def weights():
    folder = importlib.util.find_spec("silero_vad").submodule_search_locations[0]
    return os.path.join(folder, "data", "silero_vad.onnx")


def write(repository, example):
    folder = os.path.join(repository, "silero_vad")
    os.makedirs(os.path.join(folder, "1"))
    shutil.copy(os.path.join(example, "config.pbtxt"), folder)
    shutil.copy(weights(), os.path.join(folder, "1", "model.onnx"))


def number(kind, name, value, datatype="INT32", shape=(1, 1)):
    return tensor(kind, name, numpy.array(value).reshape(shape), datatype)


def sums(infer, ids):
    """Interleaved sequences, each of which must see its own sums."""
    for place in range(6):
        for index, name in enumerate(ids):
            value = 100 * (index + 1) + place
            got = infer(name, value, place == 0, place == 5)
            equal(got, sum(100 * (index + 1) + step for step in range(place + 1)), (name, place))


@check
def http(addresses):
    client = tritonclient.http.InferenceServerClient(addresses[0])
    assert {"sequence", "sequence(string_id)"} <= {*client.get_server_metadata()["extensions"]}

    def infer(name, value, start, end):
        inputs = [number(tritonclient.http, "INPUT", value)]
        answer = client.infer("sums", inputs, sequence_id=name, sequence_start=start, sequence_end=end)
        return int(answer.as_numpy("OUTPUT")[0][0])

    sums(infer, [1, 2, 3, "a", "b", "2"])


@check
def grpc(addresses):
    client = tritonclient.grpc.InferenceServerClient(addresses[1])

    def infer(name, value, start, end):
        inputs = [number(tritonclient.grpc, "INPUT", value)]
        answer = client.infer("sums", inputs, sequence_id=name, sequence_start=start, sequence_end=end)
        return int(answer.as_numpy("OUTPUT")[0][0])

    sums(infer, [11, 12, "x"])
    try:
        infer(99, 1, False, False)
        raise AssertionError("it was not begun")
    except InferenceServerException as error:
        want = (
            "inference request for sequence 99 to model 'sums' must specify the START flag on the first request of "
            "the sequence"
        )
        equal((error.message(), error.status()), (want, "StatusCode.INVALID_ARGUMENT"), "unstarted")


@check
def stream(addresses):
    stream, want = Stream(addresses[1]), []
    for place in range(20):
        for name in (21, "s", 22):
            scale = {21: 1, "s": 1000, 22: 1000000}[name]
            stream.send(
                "sums",
                [number(tritonclient.grpc, "INPUT", scale)],
                request_id=f"{name}-{place}",
                sequence_id=name,
                sequence_start=place == 0,
                sequence_end=place == 19,
            )
            want.append((f"{name}-{place}", scale * (place + 1)))
    got = []
    for _ in want:
        result, error = stream.take()
        assert error is None, error
        response = result.get_response()
        assert response.parameters["triton_final_response"].bool_param
        got.append((response.id, int(result.as_numpy("OUTPUT")[0][0])))
    equal(got, want, "in the order of the requests")
    stream.close()


@check
def stream_errors_are_in_band(addresses):
    stream = Stream(addresses[1])
    inputs = [number(tritonclient.grpc, "INPUT", 5)]
    stream.send("nope", inputs, request_id="1")
    stream.send("sums", inputs, request_id="2", sequence_id=31)
    stream.send("sums", inputs, request_id="3", sequence_id=31, sequence_start=True)
    _, first = stream.take()
    equal(first.message(), "Request for unknown model: 'nope' is not found", "unknown model")
    _, second = stream.take()
    assert "must specify the START flag" in second.message(), second
    result, error = stream.take()
    equal((error, result.get_response().id), (None, "3"), "the stream goes on")
    stream.close()


@check
def a_stream_that_ends_ends_its_sequences(addresses):
    stream = Stream(addresses[1])
    inputs = [number(tritonclient.grpc, "INPUT", 5)]
    stream.send("sums", inputs, sequence_id=41, sequence_start=True)
    stream.take()
    stream.close(cancel=True)
    client = tritonclient.grpc.InferenceServerClient(addresses[1])
    until = time.monotonic() + 20
    while time.monotonic() < until:
        # A request that waits when the stream's end is met goes on with the sequence: it is to be met between two.
        time.sleep(0.2)
        try:
            client.infer("sums", inputs, sequence_id=41)
        except InferenceServerException as error:
            assert "must specify the START flag" in error.message(), error
            return
    raise AssertionError("it goes on")


@check
def streams_by_asyncio(addresses):
    async def run():
        client = tritonclient.grpc.aio.InferenceServerClient(addresses[1])

        async def requests():
            for place in range(10):
                yield {
                    "model_name": "sums",
                    "inputs": [number(tritonclient.grpc, "INPUT", 7)],
                    "sequence_id": 51,
                    "sequence_start": place == 0,
                    "sequence_end": place == 9,
                }

        got = []
        async for result, error in client.stream_infer(requests()):
            assert error is None, error
            got.append(int(result.as_numpy("OUTPUT")[0][0]))
        equal(got, [7 * (place + 1) for place in range(10)], "asyncio")
        await client.close()

    asyncio.run(run())


def repeat(kind, values, delays, wait=0):
    size = (len(values),)
    return [
        number(kind, "IN", values, shape=size),
        number(kind, "DELAY", delays, "UINT32", size),
        number(kind, "WAIT", [wait], "UINT32", (1,)),
    ]


@check
def decoupled(addresses):
    stream = Stream(addresses[1])
    for delay in (0, 3):
        stream.send("repeat", repeat(tritonclient.grpc, [4, 2, 9], [delay] * 3), request_id="r")
        got = []
        for _ in range(3):
            result, error = stream.take()
            assert error is None, error
            response = result.get_response()
            assert not response.parameters["triton_final_response"].bool_param
            got.append((int(result.as_numpy("OUT")[0]), int(result.as_numpy("IDX")[0])))
        equal(got, [(4, 0), (2, 1), (9, 2)], "repeat")
    for count in (0, 1, 5):
        inputs = [number(tritonclient.grpc, "IN", [count], shape=(1,))]
        stream.send("square", inputs, request_id="s", enable_empty_final_response=True)
        for _ in range(count):
            result, error = stream.take()
            equal((error, int(result.as_numpy("OUT")[0])), (None, count), "square")
        result, error = stream.take()
        response = result.get_response()
        final = response.parameters["triton_final_response"].bool_param
        equal((response.id, len(response.outputs), final), ("s", 0, True), "the end")
    # Interleaved: a slow request does not hold up another's responses.
    stream.send("repeat", repeat(tritonclient.grpc, [1, 1], [300, 0]), request_id="slow")
    stream.send("repeat", repeat(tritonclient.grpc, [2], [0]), request_id="fast")
    ids = [stream.take()[0].get_response().id for _ in range(3)]
    equal(ids, ["fast", "slow", "slow"], "as they come")
    many = 100000
    stream.send("square", [number(tritonclient.grpc, "IN", [many], shape=(1,))])
    equal({int(stream.take()[0].as_numpy("OUT")[0]) for _ in range(many)}, {many}, "many")
    stream.close()


@check
def iterative_sequences(addresses):
    """A decoupled model that has a request run again answers each run with how many are left."""
    stream, asked = Stream(addresses[1]), {f"i{count}": count for count in (1, 2, 7, 30, 4, 9)}
    for index, (name, count) in enumerate(asked.items()):
        more = {"sequence_id": 61, "sequence_start": True} if index == 2 else {}
        stream.send("iterative", [number(tritonclient.grpc, "INPUT", count)], request_id=name, **more)
    got = {name: [] for name in asked}
    for _ in range(sum(asked.values())):
        result, error = stream.take()
        assert error is None, error
        response = result.get_response()
        left = int(result.as_numpy("OUTPUT")[0][0])
        equal(response.parameters["triton_final_response"].bool_param, left == 0, "the last says so")
        got[response.id].append(left)
    equal(got, {name: list(range(count - 1, -1, -1)) for name, count in asked.items()}, "each its own")
    # A client that leaves frees its slot.
    for _ in range(6):
        stream.send("iterative", [number(tritonclient.grpc, "INPUT", 1000000000)])
    stream.take()
    stream.close(cancel=True)
    stream = Stream(addresses[1])
    stream.send("iterative", [number(tritonclient.grpc, "INPUT", 2)])
    equal([int(stream.take()[0].as_numpy("OUTPUT")[0][0]) for _ in range(2)], [1, 0], "there is a slot")
    stream.close()


@check
def decoupled_models_are_refused_where_one_answer_is_due(addresses):
    for client, kind, want in (
        (
            tritonclient.http.InferenceServerClient(addresses[0]),
            tritonclient.http,
            ("HTTP end point doesn't support models with decoupled transaction policy", "501"),
        ),
        (
            tritonclient.grpc.InferenceServerClient(addresses[1]),
            tritonclient.grpc,
            (
                "ModelInfer RPC doesn't support models with decoupled transaction policy",
                "StatusCode.UNIMPLEMENTED",
            ),
        ),
    ):
        try:
            client.infer("repeat", repeat(kind, [1], [0]))
            raise AssertionError("it answered")
        except InferenceServerException as error:
            equal((error.message(), error.status()), want, "refused")


@check
def a_cancelled_stream_leaves_nothing_behind(addresses):
    stream = Stream(addresses[1])
    stream.send("repeat", repeat(tritonclient.grpc, [1] * 1000, [20] * 1000))
    stream.take()
    stream.close(cancel=True)


STREAMS = 100
CHUNKS = 12


def sound(seed):
    """Something like speech here and there: tones with overtones that come and go, in noise."""
    random = numpy.random.default_rng(seed)
    time = numpy.arange(512 * CHUNKS) / 16000
    pitch = random.uniform(90, 260)
    voice = sum(numpy.sin(2 * numpy.pi * pitch * n * time + random.uniform(0, 6)) / n for n in range(1, 12))
    envelope = numpy.sin(2 * numpy.pi * random.uniform(1, 5) * time + random.uniform(0, 6)) > 0
    return (0.2 * voice * envelope + 0.01 * random.standard_normal(len(time))).astype(numpy.float32)


def chunks(samples):
    padded = numpy.concatenate([numpy.zeros(64, dtype=numpy.float32), samples])
    return [padded[512 * index : 512 * index + 576].reshape(1, 576) for index in range(CHUNKS)]


@check
def silero_vad_of_interleaved_streams(addresses):
    session = onnxruntime.InferenceSession(weights(), providers=["CPUExecutionProvider"])
    rate = numpy.array(16000, dtype=numpy.int64)
    want = []
    for seed in range(STREAMS):
        state, probabilities = numpy.zeros((2, 1, 128), dtype=numpy.float32), []
        for chunk in chunks(sound(seed)):
            output, state = session.run(["output", "stateN"], {"input": chunk, "state": state, "sr": rate})
            probabilities.append(float(output[0][0]))
        want.append(probabilities)
    got, errors = [[] for _ in range(STREAMS)], []

    def lane(first, lanes):
        """Every stream of a lane is one chunk further in each round."""
        try:
            client = tritonclient.http.InferenceServerClient(addresses[0])
            mine = {seed: chunks(sound(seed)) for seed in range(first, STREAMS, lanes)}
            for place in range(CHUNKS):
                for seed, parts in mine.items():
                    tensor = tritonclient.http.InferInput("input", [1, 576], "FP32")
                    tensor.set_data_from_numpy(parts[place])
                    sr = tritonclient.http.InferInput("sr", [1], "INT64")
                    sr.set_data_from_numpy(rate.reshape(1))
                    answer = client.infer(
                        "silero_vad",
                        [tensor, sr],
                        sequence_id=seed + 1,
                        sequence_start=place == 0,
                        sequence_end=place == CHUNKS - 1,
                    )
                    got[seed].append(float(answer.as_numpy("output")[0][0]))
        except BaseException as error:  # it is told in the main thread
            errors.append(error)

    lanes = [threading.Thread(target=lane, args=(index, 4)) for index in range(4)]
    [thread.start() for thread in lanes]
    [thread.join() for thread in lanes]
    assert not errors, errors
    worst = numpy.abs(numpy.array(got) - numpy.array(want)).max()
    spread = numpy.array(want)
    assert spread.max() - spread.min() > 0.2, "the streams must tell something"
    assert worst < 1e-4, worst
    print(f"{STREAMS} streams of {CHUNKS} chunks, greatest difference {worst:.1e}", file=sys.stderr)


if sys.argv[1] == "write":
    write(*sys.argv[2:])
else:
    run(sys.argv[2:])
