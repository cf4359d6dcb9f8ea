"""Checks Python models with `tritonclient`: `check.py HTTP GRPC`. Prints a line for each check that holds."""

import asyncio
import os
import queue
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), os.pardir, "python"))

import ending  # noqa: F401
import numpy as np
import tritonclient.grpc as grpc
import tritonclient.grpc.aio as grpc_aio
import tritonclient.http as http
from tritonclient.utils import InferenceServerException, np_to_triton_dtype

CHECKS = []


def check(function):
    CHECKS.append(function)
    return function


def inputs(module, **arrays):
    made = []
    for name, array in arrays.items():
        tensor = module.InferInput(name, list(array.shape), np_to_triton_dtype(array.dtype))
        tensor.set_data_from_numpy(array)
        made.append(tensor)
    return made


def texts(*values):
    return np.array(values, dtype=object)


def both(clients):
    yield http, clients["http"]
    yield grpc, clients["grpc"]


@check
def strings_come_as_they_went(clients):
    text = texts("plain", "", "café 東京 \N{GRINNING FACE}", b"\xff\xfe nul \0 inside")
    for module, client in both(clients):
        result = client.infer("string_forms", inputs(module, text=text))
        want = [element if isinstance(element, bytes) else element.encode() for element in text]
        assert result.as_numpy("same").tolist() == want
        assert result.as_numpy("lengths").tolist() == [len(element) for element in want]
        assert result.as_numpy("as_str")[2].decode() == text[2]
        assert result.as_numpy("as_s")[0] == b"plain"
        empty = client.infer("string_forms", inputs(module, text=texts()))
        assert empty.as_numpy("same").shape == (0,) and empty.as_numpy("objects").shape == (0, 2)


@check
def every_datatype_comes_as_it_went(clients):
    arrays = {}
    for dtype in "bool uint8 uint16 uint32 uint64 int8 int16 int32 int64 float16 float32 float64".split():
        name = f"IN_{np_to_triton_dtype(np.dtype(dtype))}"
        info = np.iinfo(dtype) if "int" in dtype else np.finfo(dtype) if "float" in dtype else None
        arrays[name] = np.array([info.min, 0, info.max] if info else [True, False, True], dtype=dtype)
    for module, client in both(clients):
        result = client.infer("all_types", inputs(module, **arrays))
        for name, array in arrays.items():
            got = result.as_numpy(name.replace("IN_", "OUT_"))
            assert got.dtype == array.dtype and (got == array).all(), name


@check
def outputs_of_any_layout_are_sent_in_order(clients):
    matrix = np.arange(6, dtype=np.int32).reshape(2, 3)
    for module, client in both(clients):
        result = client.infer("layouts", inputs(module, matrix=matrix))
        assert (result.as_numpy("transposed") == matrix.T).all()
        assert (result.as_numpy("reversed") == matrix[::-1, ::-1]).all()
        assert (result.as_numpy("every_second") == matrix[:, ::2]).all()
        assert (result.as_numpy("broadcast") == matrix).all()
        assert (result.as_numpy("in_place") == matrix + 100).all()


@check
def optional_inputs_may_be_left_out(clients):
    for module, client in both(clients):
        seen = client.infer("optional_inputs", inputs(module, text=texts("x"))).as_numpy("seen")
        assert seen.tolist() == [b"text", b"temperature 1.0", b"stop False"]


@check
def a_request_says_who_it_is(clients):
    for module, client in both(clients):
        result = client.infer(
            "request_echo",
            inputs(module, x=np.array([1], dtype=np.int32)),
            request_id="mine",
            sequence_id=77,
            sequence_start=True,
            timeout=9_000_000,
            parameters={"word": "hello", "number": 5, "yes": True},
        )
        seen = [line.decode() for line in result.as_numpy("seen")]
        assert seen[:2] == ["request_id 'mine'", "correlation_id 77"], seen
        assert seen[4] == 'parameters {"number": 5, "word": "hello", "yes": true}', seen
        assert seen[3] == "timeout 9000000", seen
    # tritonclient for HTTP refuses numpy's integers itself: its JSON has none.
    result = clients["grpc"].infer(
        "request_echo",
        inputs(grpc, x=np.array([1], dtype=np.int32)),
        sequence_id=np.int64(78),
        sequence_start=True,
        priority=np.uint8(0),
        timeout=np.int32(8_000_000),
        parameters={"number": 6},
    )
    seen = [line.decode() for line in result.as_numpy("seen")]
    assert seen[1] == "correlation_id 78" and seen[3] == "timeout 8000000", seen


@check
def an_error_has_its_text_and_code(clients):
    x = np.array([13], dtype=np.int32)
    for module, client in both(clients):
        try:
            client.infer("double", inputs(module, x=x))
        except InferenceServerException as error:
            assert error.message() == "13 is not doubled", error
            assert error.status() in ("400", "StatusCode.INVALID_ARGUMENT"), error
        else:
            raise AssertionError("no error")


@check
def a_sequence_is_remembered_by_its_id(clients):
    client = clients["grpc"]
    history = {}
    for step, (sequence, value) in enumerate([(1, 10), (2, 20), (1, 11), (1, 12), (2, 21)]):
        history.setdefault(sequence, []).append(value)
        result = client.infer(
            "session_memory",
            inputs(grpc, INPUT=np.array([[value]], dtype=np.int32)),
            sequence_id=sequence,
            sequence_start=len(history[sequence]) == 1,
            sequence_end=step >= 3,
        )
        assert result.as_numpy("OUTPUT").tolist() == [history[sequence]]


@check
def tokens_are_streamed(clients):
    client, came = clients["grpc"], queue.Queue()
    client.start_stream(callback=lambda result, error: came.put((result, error)))
    words = " ".join(str(number) for number in range(50))
    asked = inputs(grpc, PROMPT=texts(words), MAX_TOKENS=np.array([30], dtype=np.int32))
    client.async_stream_infer("token_stream", asked, request_id="one", enable_empty_final_response=True)
    tokens = []
    while True:
        result, error = came.get(timeout=20)
        assert error is None, error
        if result.get_response().parameters["triton_final_response"].bool_param:
            break
        tokens.append(result.as_numpy("TOKEN")[0].decode())
    assert tokens == [str(number) for number in reversed(range(20, 50))]
    late = inputs(
        grpc,
        IN=np.array([4, 5, 6], dtype=np.int32),
        DELAY=np.array([1, 1, 1], dtype=np.uint32),
        WAIT=np.array([0], dtype=np.uint32),
    )
    client.async_stream_infer("late_answers", late)
    assert [came.get(timeout=20)[0].as_numpy("OUT")[0] for _ in range(3)] == [4, 5, 6]
    client.stop_stream()


@check
def many_clients_ask_at_once(clients):
    async def ask():
        async with grpc_aio.InferenceServerClient(clients["address"]) as client:
            async def one(number):
                x = np.array([[number, 1]], dtype=np.float32)
                result = await client.infer("batch_concat", inputs(grpc_aio, x=x))
                y = np.array([number], dtype=np.int32)
                waited = await client.infer("async_execute", inputs(grpc_aio, x=y))
                return result.as_numpy("y").item(), waited.as_numpy("y").item()

            return await asyncio.gather(*[one(number) for number in range(64)])

    assert asyncio.run(ask()) == [(number + 10, number + 1) for number in range(64)]


def main():
    address_http, address_grpc = sys.argv[1:]
    clients = {
        "http": http.InferenceServerClient(address_http),
        "grpc": grpc.InferenceServerClient(address_grpc),
        "address": address_grpc,
    }
    for function in CHECKS:
        function(clients)
        print(f"ok {function.__name__}", flush=True)


if __name__ == "__main__":
    main()
