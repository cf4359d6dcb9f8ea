"""Responses of a decoupled model in right and wrong ways, told in responses where that is still possible."""

import threading

import numpy as np
import triton_python_backend_utils as pb_utils

FINAL = pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL


def response(*texts):
    return pb_utils.InferenceResponse([pb_utils.Tensor("result", np.array(texts, dtype=object))])


def failure(function, *arguments, **named):
    try:
        function(*arguments, **named)
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return "no exception"


class TritonPythonModel:
    def initialize(self, args):
        self.kept = "nothing"

    def execute(self, requests):
        (request,) = requests
        case = pb_utils.get_input_tensor_by_name(request, "case").as_numpy()[0].decode()
        return getattr(self, case)(request, request.get_response_sender())

    def last(self, request, sender):
        sender.send(response(self.kept), FINAL)

    def none_at_all(self, request, sender):
        sender.send(flags=FINAL)

    def one_with_the_end(self, request, sender):
        sender.send(response("only"), FINAL)

    def three(self, request, sender):
        for number in range(3):
            sender.send(response(f"response {number}"))
        sender.send(flags=FINAL)

    def three_from_a_thread(self, request, sender):
        def send():
            for number in range(3):
                sender.send(response(f"response {number}"))
            sender.send(flags=FINAL)

        threading.Timer(0.02, send).start()

    def an_error_between(self, request, sender):
        sender.send(response("before"))
        error = pb_utils.TritonError("in between", pb_utils.TritonError.UNAVAILABLE)
        sender.send(pb_utils.InferenceResponse(error=error))
        sender.send(response("behind"), FINAL)

    def after_the_end(self, request, sender):
        sender.send(response("one"), FINAL)
        self.kept = failure(sender.send, response("two"))

    def end_twice(self, request, sender):
        sender.send(flags=FINAL)
        self.kept = failure(sender.send, flags=FINAL)

    def unknown_flag(self, request, sender):
        sender.send(response(failure(sender.send, response("x"), 2)), FINAL)

    def nothing_sent(self, request, sender):
        sender.send(response(failure(sender.send)), FINAL)

    def returns_a_list(self, request, sender):
        sender.send(response("before the return"))
        self.kept = "the sender is " + ("open" if sender else "gone")
        return [response("returned")]

    def raises(self, request, sender):
        sender.send(response("before the exception"))
        raise ValueError("in the midst")

    def raises_and_sends(self, request, sender):
        self.sender = sender
        raise ValueError("closes the senders")

    def sends_after_it_raised(self, request, sender):
        sender.send(response(failure(self.sender.send, response("too late"))), FINAL)

    def dropped(self, request, sender):
        sender.send(response("the only one, without an end"))

    def is_cancelled(self, request, sender):
        sender.send(response(f"{sender.is_cancelled()} {request.is_cancelled()}"), FINAL)

    def many(self, request, sender):
        for number in range(200):
            sender.send(response(str(number)))
        sender.send(flags=FINAL)
