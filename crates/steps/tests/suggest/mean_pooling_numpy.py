# rows 16
# input states FP32 -1 384
# input mask INT64 -1
# output embedding FP32 384
import json
import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        responses = []
        for request in requests:
            states = pb_utils.get_input_tensor_by_name(request, "states").as_numpy()
            mask = pb_utils.get_input_tensor_by_name(request, "mask").as_numpy().astype(np.float32)[:, :, None]
            summed = (states * mask).sum(axis=1)
            counts = np.clip(mask.sum(axis=1), 1e-9, None)
            vectors = summed / counts
            vectors = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
            responses.append(pb_utils.InferenceResponse([pb_utils.Tensor("embedding", vectors)]))
        return responses
