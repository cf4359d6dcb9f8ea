"""Answers its input after the time that the request says."""

import time

import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        responses = []
        for request in requests:
            delay_ms = pb_utils.get_input_tensor_by_name(request, "delay_ms").as_numpy()[0]
            time.sleep(delay_ms / 1000)
            x = pb_utils.get_input_tensor_by_name(request, "x").as_numpy()
            responses.append(pb_utils.InferenceResponse([pb_utils.Tensor("y", x)]))
        return responses
