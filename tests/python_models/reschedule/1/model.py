"""Runs a request as often as its input says, by rescheduling it, and answers with how often it ran."""

import numpy
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def initialize(self, args):
        self.runs = {}

    def execute(self, requests):
        return [self.answer(request) for request in requests]

    def answer(self, request):
        wanted = int(pb_utils.get_input_tensor_by_name(request, "INPUT").as_numpy().reshape(-1)[0])
        runs = self.runs.pop(request.correlation_id(), 0) + 1
        if runs < wanted:
            self.runs[request.correlation_id()] = runs
            request.set_release_flags(pb_utils.TRITONSERVER_REQUEST_RELEASE_RESCHEDULE)
            return None
        tensor = pb_utils.Tensor("OUTPUT", numpy.array([[runs]], dtype=numpy.int32))
        return pb_utils.InferenceResponse([tensor])
