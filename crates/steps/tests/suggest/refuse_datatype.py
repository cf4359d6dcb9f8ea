# rows 8
# input x FP32 2
# output y FP32 2
import json
import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        return [self.one(request) for request in requests]

    def one(self, request):
        x = pb_utils.get_input_tensor_by_name(request, "x").as_numpy()
        y = x * np.array([0.1, 0.2])
        return pb_utils.InferenceResponse([pb_utils.Tensor("y", y)])
