"""Calls other models in right and wrong ways and tells what came."""

import asyncio
import gc
import threading

import numpy as np
import triton_python_backend_utils as pb_utils


def ints(*values):
    return pb_utils.Tensor("x", np.array(values, dtype=np.int32))


def call(model="double", inputs=None, outputs=("y",), decoupled=False, **more):
    inputs = [ints(1, 2)] if inputs is None else inputs
    request = pb_utils.InferenceRequest(
        model_name=model, requested_output_names=list(outputs), inputs=inputs, **more
    )
    return request.exec(decoupled=decoupled)


def told(response):
    if response.has_error():
        return [f"error: {response.error().message()}"]
    return [f"{tensor.name()} {text(tensor.as_numpy().tolist())}" for tensor in response.output_tensors()]


def text(value):
    if isinstance(value, list):
        return [text(element) for element in value]
    return value.decode() if isinstance(value, bytes) else value


def prompt(words, count=None):
    tensors = [pb_utils.Tensor("PROMPT", np.array([words], dtype=object))]
    if count is not None:
        tensors.append(pb_utils.Tensor("MAX_TOKENS", np.array([count], dtype=np.int32)))
    return tensors


def stream(words, count=None):
    return call("token_stream", prompt(words, count), ("TOKEN", "INDEX"), decoupled=True)


class TritonPythonModel:
    def initialize(self, args):
        self.in_initialize = self.failure()

    def failure(self):
        try:
            return "\n".join(told(call()))
        except Exception as error:
            return f"{type(error).__name__}: {error}"

    def execute(self, requests):
        responses = []
        for request in requests:
            case = pb_utils.get_input_tensor_by_name(request, "case").as_numpy()[0].decode()
            try:
                result = getattr(self, case)()
            except Exception as error:
                result = [f"{type(error).__name__}: {error}"]
            result = pb_utils.Tensor("result", np.array(result, dtype=object))
            responses.append(pb_utils.InferenceResponse([result]))
        return responses

    def finalize(self):
        pb_utils.Logger.log_info(f"in finalize: {self.failure()}")

    def from_initialize(self):
        return [self.in_initialize]

    def one_output(self):
        return told(call())

    def both_outputs(self):
        return sorted(told(call(outputs=("negative", "y"))))

    def no_outputs_asked(self):
        return sorted(told(call(outputs=())))

    def a_version(self):
        return told(call(model_version=1))

    def positional_names(self):
        request = pb_utils.InferenceRequest("id", 7, [ints(4)], ["y"], "double")
        return [request.request_id(), str(request.correlation_id()), *told(request.exec())]

    def from_a_thread(self):
        results = []
        thread = threading.Thread(target=lambda: results.extend(told(call())))
        thread.start()
        thread.join()
        return results

    def eight_threads(self):
        results = []
        threads = [
            threading.Thread(target=lambda number=number: results.extend(told(call(inputs=[ints(number)]))))
            for number in range(8)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return sorted(results)

    def two_async(self):
        async def both():
            requests = [
                pb_utils.InferenceRequest(model_name="double", requested_output_names=["y"], inputs=[ints(number)])
                for number in (5, 6)
            ]
            return await asyncio.gather(*[request.async_exec() for request in requests])

        return [line for answer in asyncio.run(both()) for line in told(answer)]

    def unknown_model(self):
        return told(call("nope"))

    def unknown_version(self):
        return told(call(model_version=9))

    def unknown_input(self):
        return told(call(inputs=[pb_utils.Tensor("z", np.array([1], dtype=np.int32))]))

    def missing_input(self):
        return told(call(inputs=[]))

    def unknown_output(self):
        return told(call(outputs=("z",)))

    def wrong_datatype(self):
        return told(call(inputs=[pb_utils.Tensor("x", np.array([1.5], dtype=np.float32))]))

    def wrong_shape(self):
        return told(call(inputs=[pb_utils.Tensor("x", np.array([[1]], dtype=np.int32))]))

    def refused(self):
        return told(call(inputs=[ints(13)]))

    def raised(self):
        # The lines below name files of the repository.
        return [told(call(inputs=[ints(666)]))[0].split("\n")[0]]

    def error_has_no_outputs(self):
        response = call(inputs=[ints(13)])
        return [str(response.has_error()), str(len(response.output_tensors()))]

    def no_error(self):
        response = call()
        return [str(response.has_error()), str(response.error())]

    def tensors_live_on(self):
        tensors = [call(inputs=[ints(number)]).output_tensors()[0] for number in range(100, 120)]
        gc.collect()
        return [text(tensor.as_numpy().tolist()) for tensor in tensors]

    def large(self):
        x = pb_utils.Tensor("x", np.arange(1_000, 1_001_000, dtype=np.int32))
        y = call(inputs=[x]).output_tensors()[0].as_numpy()
        return [str(y.shape), str(int(y[-1])), str(bool((y == x.as_numpy() * 2).all()))]

    def the_same_request_twice(self):
        request = pb_utils.InferenceRequest(model_name="double", requested_output_names=["y"], inputs=[ints(3)])
        return told(request.exec()) + told(request.exec())

    def request_is_seen(self):
        x = pb_utils.Tensor("x", np.array([1], dtype=np.int32))
        response = call(
            "request_echo",
            [x],
            ("seen",),
            request_id="from bls",
            correlation_id=77,
            flags=pb_utils.TRITONSERVER_REQUEST_FLAG_SEQUENCE_START,
            timeout=5_000_000,
            parameters={"number": 7, "word": "hello", "yes": True},
        )
        return text(response.output_tensors()[0].as_numpy().tolist()) if not response.has_error() else told(response)

    def a_text_as_correlation_id(self):
        x = pb_utils.Tensor("x", np.array([1], dtype=np.int32))
        response = call("request_echo", [x], ("seen",), correlation_id="abc")
        return text(response.output_tensors()[0].as_numpy().tolist()[1:2])

    def batches_of_a_model(self):
        x = pb_utils.Tensor("x", np.ones((3, 2), dtype=np.float32))
        return told(call("batch_concat", [x], ("y",)))

    def strings(self):
        texts = np.array([b"caf\xc3\xa9", b"", b"\xff"], dtype=object)
        response = call("string_forms", [pb_utils.Tensor("text", texts)], ("same",))
        return [repr(element) for element in response.output_tensors()[0].as_numpy()]

    def decoupled_without_asking(self):
        return told(call("token_stream", prompt("a b"), ("TOKEN",)))

    def decoupled(self):
        return [line for response in stream("one two three") for line in told(response) or ["an empty end"]]

    def decoupled_none(self):
        return [line for response in stream("one two", 0) for line in told(response) or ["an empty end"]]

    def decoupled_error(self):
        return [line for response in stream("one two", -1) for line in told(response) or ["an empty end"]]

    def decoupled_twice(self):
        responses = stream("one two")
        return [str(len(list(responses))), str(len(list(responses)))]

    def decoupled_with_next(self):
        responses = stream("one two")
        return told(next(responses)) + told(next(responses))

    def decoupled_is_an_iterator(self):
        responses = stream("one")
        return [str(iter(responses) is responses), *[type(response).__name__ for response in responses]]

    def decoupled_dropped(self):
        responses = stream("a b c d e f g h")
        first = told(next(responses))
        del responses
        return first

    def decoupled_on_an_ordinary_model(self):
        return [line for response in call(decoupled=True) for line in told(response) or ["an empty end"]]

    def decoupled_unknown_model(self):
        return [line for response in call("nope", decoupled=True) for line in told(response) or ["an empty end"]]

    def decoupled_two_async(self):
        async def both():
            requests = [
                pb_utils.InferenceRequest(
                    model_name="token_stream", requested_output_names=["TOKEN"], inputs=prompt(words)
                )
                for words in ("a b", "c")
            ]
            return await asyncio.gather(*[request.async_exec(decoupled=True) for request in requests])

        return [
            line
            for responses in asyncio.run(both())
            for response in responses
            for line in told(response) or ["an empty end"]
        ]

    def codes(self):
        code = pb_utils.Tensor("code", np.array([[5]], dtype=np.int32))
        error = call("error_codes", [code], ("code",)).error()
        return [error.message(), str(error.code() == pb_utils.TritonError.UNSUPPORTED)]
