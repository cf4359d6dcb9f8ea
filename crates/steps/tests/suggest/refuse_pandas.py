# rows 8
# input age FP32 1
# output features FP32 2
import json
import numpy as np
import triton_python_backend_utils as pb_utils
import pandas as pd


class TritonPythonModel:
    def execute(self, requests):
        responses = []
        for request in requests:
            age = pb_utils.get_input_tensor_by_name(request, "age").as_numpy()
            frame = pd.DataFrame({"age": age[:, 0]})
            frame["older"] = frame["age"] + 1
            responses.append(pb_utils.InferenceResponse([pb_utils.Tensor("features", frame.to_numpy())]))
        return responses
