"""Answers by a response sender though the model is not decoupled: once, as it should, and in wrong ways.

What a wrong call raises is the answer, where there may still be one; else it is kept, and `last` tells it.
"""

import threading

import numpy as np
import triton_python_backend_utils as pb_utils

FINAL = pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL


def response(text):
    return pb_utils.InferenceResponse([pb_utils.Tensor("result", np.array([text], dtype=object))])


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
        return getattr(self, case)(request)

    def last(self, request):
        kept, self.kept = self.kept, "nothing"
        return [response(kept)]

    def at_once(self, request):
        request.get_response_sender().send(response("with the end"), FINAL)

    def none_in_a_list(self, request):
        request.get_response_sender().send(response("with the end, in a list"), flags=FINAL)
        return [None]

    def response_then_end(self, request):
        sender = request.get_response_sender()
        sender.send(response=response("the end comes behind"))
        sender.send(flags=FINAL)

    def later(self, request):
        sender = request.get_response_sender()
        threading.Timer(0.05, lambda: sender.send(response("after the return"), FINAL)).start()

    def error(self, request):
        error = pb_utils.TritonError("refused by the sender", pb_utils.TritonError.NOT_FOUND)
        request.get_response_sender().send(pb_utils.InferenceResponse(error=error), FINAL)

    def two_responses(self, request):
        sender = request.get_response_sender()
        sender.send(response("the first"))
        self.kept = failure(sender.send, response("the second"), FINAL)
        sender.send(flags=FINAL)

    def end_first(self, request):
        sender = request.get_response_sender()
        sender.send(response(failure(sender.send, flags=FINAL)), FINAL)

    def after_the_end(self, request):
        sender = request.get_response_sender()
        sender.send(response("one"), FINAL)
        self.kept = failure(sender.send, response("two"))

    def end_twice(self, request):
        sender = request.get_response_sender()
        sender.send(response("one"), FINAL)
        self.kept = failure(sender.send, flags=FINAL)

    def unknown_flag(self, request):
        sender = request.get_response_sender()
        sender.send(response(failure(sender.send, response("x"), 2)), FINAL)

    def nothing_sent(self, request):
        sender = request.get_response_sender()
        sender.send(response(failure(sender.send)), FINAL)

    def no_response(self, request):
        sender = request.get_response_sender()
        sender.send(response(failure(sender.send, "text", FINAL).split("\n")[0][:9]), FINAL)

    def two_senders(self, request):
        one, two = request.get_response_sender(), request.get_response_sender()
        one.send(response(f"the same sender: {one is two}"), FINAL)
        self.kept = failure(two.send, response("two"), FINAL)

    def sent_and_returned(self, request):
        request.get_response_sender().send(response("sent"), FINAL)
        return [response("returned")]

    def sender_is_dropped(self, request):
        request.get_response_sender()

    def response_without_end(self, request):
        request.get_response_sender().send(response("without an end"))

    def raises_after_the_end(self, request):
        request.get_response_sender().send(response("answered before"), FINAL)
        raise ValueError("too late")

    def raises_before(self, request):
        request.get_response_sender()
        raise ValueError("before an answer")

    def is_cancelled(self, request):
        sender = request.get_response_sender()
        sender.send(response(f"is cancelled: {sender.is_cancelled()}"), FINAL)

    def pruned(self, request):
        other = pb_utils.Tensor("other", np.array([1]))
        sent = pb_utils.InferenceResponse([other, *response("pruned").output_tensors()])
        request.get_response_sender().send(sent, FINAL)

    def wrong_tensors(self, request):
        sender = request.get_response_sender()
        sent = pb_utils.InferenceResponse([pb_utils.Tensor("result", np.array([1.5]))])
        sender.send(sent, FINAL)
