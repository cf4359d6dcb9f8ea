# rows 64
# input scores FP32 3
# output name BYTES 1 reshape
import numpy as np
import triton_python_backend_utils as pb_utils

NAMES = np.array(["red", "green", "blue"], dtype=object)

class TritonPythonModel:
    def execute(self, requests):
        scores = [pb_utils.get_input_tensor_by_name(request, "scores").as_numpy() for request in requests]
        names = [NAMES[rows.argmax(axis=1)].reshape(-1, 1) for rows in scores]
        return [pb_utils.InferenceResponse([pb_utils.Tensor("name", rows)]) for rows in names]
