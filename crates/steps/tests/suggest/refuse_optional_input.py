# rows 0
# input x FP32 4
# input scale FP32 1 optional
# output y FP32 4
import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        responses = []
        for request in requests:
            x = pb_utils.get_input_tensor_by_name(request, "x").as_numpy()
            scale = pb_utils.get_input_tensor_by_name(request, "scale")
            y = x if scale is None else x * scale.as_numpy()
            responses.append(pb_utils.InferenceResponse([pb_utils.Tensor("y", y)]))
        return responses
