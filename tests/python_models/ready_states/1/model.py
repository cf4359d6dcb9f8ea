"""Says whether it is ready, as the last request told it to (Triton since March 2026)."""

import time

import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def initialize(self, args):
        self.state = "true"

    def is_ready(self):
        if self.state == "raises":
            raise ValueError("not yet")
        if self.state == "slow":
            time.sleep(6)
        return {"false": False, "number": 1, "nothing": None}.get(self.state, True)

    def execute(self, requests):
        responses = []
        for request in requests:
            case = pb_utils.get_input_tensor_by_name(request, "case")
            self.state = case.as_numpy()[0].decode()
            responses.append(pb_utils.InferenceResponse([pb_utils.Tensor("result", case.as_numpy())]))
        return responses
