# rows 8
# input x FP32 4
# output y FP32 4
import json
import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        responses = []
        for request in requests:
            x = pb_utils.get_input_tensor_by_name(request, "x").as_numpy()
            y = x
            y += 1
            responses.append(pb_utils.InferenceResponse([pb_utils.Tensor("y", x)]))
        return responses
