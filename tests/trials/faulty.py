"""Echoes its input, and fails as numbers below zero say: one request alone, the batch, or the process."""

import os
import time

import numpy as np
import triton_python_backend_utils as pb_utils

ERROR, RAISE, ABORT, HANG, SHAPE, LEAK = -1, -2, -3, -4, -5, -6
kept = []


class TritonPythonModel:
    def execute(self, requests):
        return [self.answer(request) for request in requests]

    def answer(self, request):
        array = pb_utils.get_input_tensor_by_name(request, "INPUT0").as_numpy()
        fault = int(array.reshape(-1)[0])
        if fault == ERROR:
            return pb_utils.InferenceResponse(error=pb_utils.TritonError("the request alone"))
        if fault == RAISE:
            raise ValueError("the whole batch")
        if fault == ABORT:
            os.abort()
        if fault == HANG:
            time.sleep(3600)
        if fault == SHAPE:
            array = np.zeros((3, 5), dtype=np.int64)
        if fault == LEAK:
            kept.append(bytes(1 << 20))
        return pb_utils.InferenceResponse([pb_utils.Tensor("OUTPUT0", array)])
