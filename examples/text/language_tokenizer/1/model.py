"""Sentences to tokens, for a model that takes numbers alone."""

import json

import numpy as np
import triton_python_backend_utils as pb_utils

from .trigrams import encode


class TritonPythonModel:
    def initialize(self, args):
        output = pb_utils.get_output_config_by_name(json.loads(args["model_config"]), "ids")
        self.length = output["dims"][0]

    def execute(self, requests):
        return [self.answer(request) for request in requests]

    def answer(self, request):
        # [rows, 1] of bytes objects.
        sentences = pb_utils.get_input_tensor_by_name(request, "sentence").as_numpy()
        ids = np.stack([encode(bytes(text).decode("utf-8", "replace"), self.length) for text in sentences[:, 0]])
        mask = (ids != 0).astype(np.float32)
        if not mask.any(axis=1).all():
            # This request fails, with 400; the others of the batch are answered.
            error = pb_utils.TritonError("a sentence has no letters", pb_utils.TritonError.INVALID_ARG)
            return pb_utils.InferenceResponse(error=error)
        return pb_utils.InferenceResponse([pb_utils.Tensor("ids", ids), pb_utils.Tensor("mask", mask)])
