"""Ensembles by tritonclient: sync, asyncio and streams, sequences and decoupled models among their steps.

    python check.py HTTP GRPC              asks the server, prints `ok NAME` for each, exits 1 otherwise
"""

import asyncio
import os
import sys
import time

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), os.pardir, "python"))

from streams import Stream, check, equal, run, tensor

import tritonclient.grpc
import tritonclient.grpc.aio
import tritonclient.http
import tritonclient.http.aio
from tritonclient.utils import InferenceServerException

def rows(base):
    return [[base + column for column in range(16)]]


def diamond(kind):
    return [tensor(kind, "a", rows(100)), tensor(kind, "b", rows(0))]


def twice(answer):
    equal(answer.as_numpy("p").tolist(), [[2 * value for value in rows(100)[0]]], "a + b + a - b")
    equal(answer.as_numpy("m").tolist(), [[2 * value for value in rows(0)[0]]], "a + b - (a - b)")


def repeated(answer):
    """The parameters of the sequence extension in the answer of an ensemble."""
    response = answer.get_response()
    if isinstance(response, dict):
        parameters = response["parameters"]
    else:
        parameters = {name: getattr(value, value.WhichOneof("parameter_choice")) for name, value in response.parameters.items()}
    return tuple(parameters[name] for name in ("sequence_id", "sequence_start", "sequence_end"))


@check
def by_both_protocols(addresses):
    for kind, address in ((tritonclient.http, addresses[0]), (tritonclient.grpc, addresses[1])):
        client = kind.InferenceServerClient(address)
        twice(client.infer("e", diamond(kind), request_id="7"))
        asked = [kind.InferRequestedOutput("m")]
        equal(client.infer("e", diamond(kind), outputs=asked).as_numpy("p"), None, "what was not asked for")
        assert client.is_model_ready("e")
        for given, want in (
            ({}, (0, False, False)),
            ({"sequence_id": 9, "sequence_start": True}, (9, True, False)),
            ({"sequence_id": "nine", "sequence_end": True}, ("nine", False, True)),
        ):
            equal(repeated(client.infer("e", diamond(kind), **given)), want, "repeated, as Triton does")


@check
def by_asyncio(addresses):
    async def run():
        for kind, aio, address in (
            (tritonclient.http, tritonclient.http.aio, addresses[0]),
            (tritonclient.grpc, tritonclient.grpc.aio, addresses[1]),
        ):
            client = aio.InferenceServerClient(address)
            answers = await asyncio.gather(*(client.infer("e", diamond(kind)) for _ in range(16)))
            for answer in answers:
                twice(answer)
            await client.close()

    asyncio.run(run())


@check
def as_a_model(addresses):
    client = tritonclient.grpc.InferenceServerClient(addresses[1])
    equal(client.get_model_metadata("e").platform, "ensemble", "platform")
    config = client.get_model_config("e").config
    equal([step.model_name for step in config.ensemble_scheduling.step], ["addsub", "addsub"], "steps")
    before = client.get_inference_statistics("e").model_stats[0].inference_stats.success.count
    client.infer("e", diamond(tritonclient.grpc))
    after = client.get_inference_statistics("e").model_stats[0].inference_stats.success.count
    equal(after - before, 1, "once")


@check
def on_a_stream_in_order(addresses):
    stream = Stream(addresses[1])
    for index in range(30):
        stream.send("e", diamond(tritonclient.grpc), request_id=str(index))
    for index in range(30):
        result, error = stream.take()
        assert error is None, error
        equal(result.get_response().id, str(index), "in the order of the requests")
        twice(result)
    stream.close()


def numbers(stream, model, value, **more):
    """The responses of a decoupled ensemble of one INT32."""
    shape = [[value]] if model == "squares_batched" else [value]
    stream.send(model, [tensor(tritonclient.grpc, "x", shape)], enable_empty_final_response=True, **more)
    got = []
    while True:
        result, error = stream.take()
        assert error is None, error
        response = result.get_response()
        if response.outputs:
            got.append(result.as_numpy("y").tolist())
        if response.parameters["triton_final_response"].bool_param:
            return got


@check
def decoupled(addresses):
    stream = Stream(addresses[1])
    for count in (0, 1, 5, 300):
        equal(numbers(stream, "squares", count), [[count]] * count, "each answer goes through")
    equal(numbers(stream, "squares_slow", 6), [[6]] * 6, "through a step that takes its time")
    # Each of three answers gives three.
    equal(numbers(stream, "squares_twice", 3), [[3]] * 9, "one decoupled step after another")
    equal(numbers(stream, "squares_outer", 4), [[4]] * 4, "inside another ensemble")
    # In the order in which the model gave them, though those that come later may overtake.
    values = list(range(40))
    inputs = [
        tensor(tritonclient.grpc, "x", values),
        tensor(tritonclient.grpc, "delay", [0] * len(values), "UINT32"),
        tensor(tritonclient.grpc, "wait", [0], "UINT32"),
    ]
    stream.send("repeats", inputs)
    got = [stream.take()[0].as_numpy("y").tolist() for _ in values]
    equal(got, [[value] for value in values], "in order")
    stream.close()
    client = tritonclient.http.InferenceServerClient(addresses[0])
    assert client.get_model_config("squares")["model_transaction_policy"]["decoupled"]
    try:
        client.infer("squares", [tensor(tritonclient.http, "x", [1])])
        raise AssertionError("it answered")
    except InferenceServerException as error:
        equal(error.message(), "HTTP end point doesn't support models with decoupled transaction policy", "refused")


@check
def each_answer_leaves_when_it_is_made_and_the_last_is_final(addresses):
    stream, tries = Stream(addresses[1]), []
    # A step of 100 ms, one at a time. On a busy machine this thread may be late for some; a server that keeps answers back
    # is late each time.
    while not any(all(gap > 0.05 for gap in gaps) for gaps in tries):
        assert len(tries) < 5, tries
        times, final = [], []
        # Without `enable_empty_final_response`: such a client knows the end by the flag of the last answer.
        stream.send("squares_one_by_one", [tensor(tritonclient.grpc, "x", [6])])
        for _ in range(6):
            result, error = stream.take()
            assert error is None, error
            times.append(time.monotonic())
            final.append(result.get_response().parameters["triton_final_response"].bool_param)
        equal(final, [False] * 5 + [True], "the last one")
        tries.append([after - before for before, after in zip(times, times[1:])])
    stream.close()


@check
def a_cancelled_stream_leaves_nothing_behind(addresses):
    stream = Stream(addresses[1])
    inputs = [
        tensor(tritonclient.grpc, "x", [1] * 1000),
        tensor(tritonclient.grpc, "delay", [20] * 1000, "UINT32"),
        tensor(tritonclient.grpc, "wait", [0], "UINT32"),
    ]
    stream.send("repeats", inputs)
    stream.take()
    stream.close(cancel=True)


@check
def an_error_is_in_band_with_its_prefix(addresses):
    stream = Stream(addresses[1])
    stream.send("sums_through", [tensor(tritonclient.grpc, "x", [[1]])], request_id="1", sequence_id=7)
    _, error = stream.take()
    want = (
        "in ensemble 'sums_through', step 2 ('sums'): inference request for sequence 7 to model 'sums' must specify the "
        "START flag on the first request of the sequence"
    )
    equal(error.message(), want, "not begun")
    stream.send("e", diamond(tritonclient.grpc))
    twice(stream.take()[0])
    stream.close()


@check
def sequences_pass_through(addresses):
    for kind, address in ((tritonclient.http, addresses[0]), (tritonclient.grpc, addresses[1])):
        client, ids = kind.InferenceServerClient(address), [11, 12, "a", "11"]
        for place in range(5):
            for index, name in enumerate(ids):
                inputs = [tensor(kind, "x", [[10 ** index]])]
                answer = client.infer(
                    "sums_through", inputs, sequence_id=name, sequence_start=place == 0, sequence_end=place == 4
                )
                equal(int(answer.as_numpy("y")[0][0]), 10 ** index * (place + 1), (name, place))


@check
def a_stream_that_ends_ends_the_sequences_of_steps(addresses):
    stream = Stream(addresses[1])
    inputs = [tensor(tritonclient.grpc, "x", [[5]])]
    stream.send("sums_through", inputs, sequence_id=41, sequence_start=True)
    result, error = stream.take()
    equal((error, int(result.as_numpy("y")[0][0])), (None, 5), "begun")
    stream.close(cancel=True)
    client = tritonclient.grpc.InferenceServerClient(addresses[1])
    until = time.monotonic() + 20
    while time.monotonic() < until:
        # A request that waits when the stream's end is met goes on with the sequence: it is to be met between two.
        time.sleep(0.2)
        try:
            client.infer("sums_through", inputs, sequence_id=41)
        except InferenceServerException as error:
            assert "must specify the START flag" in error.message(), error
            return
    raise AssertionError("it goes on")


run(sys.argv[1:])
