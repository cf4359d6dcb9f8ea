# rows 0
# input logits FP32 1 -1 4
# output text BYTES 1
import json
import numpy as np
import triton_python_backend_utils as pb_utils
from itertools import groupby


ALPHABET = ["_", "a", "b", "c"]


class TritonPythonModel:
    def execute(self, requests):
        responses = []
        for request in requests:
            logits = pb_utils.get_input_tensor_by_name(request, "logits").as_numpy()[0]
            path = logits.argmax(axis=1)
            text = "".join([ALPHABET[k] for k, _ in groupby(path) if k != 0])
            responses.append(pb_utils.InferenceResponse([pb_utils.Tensor("text", np.array([text], dtype=object))]))
        return responses
