"""Sentences to tokens, for a model that takes numbers alone."""

import json

import numpy as np
import triton_python_backend_utils as pb_utils

from .wordpiece import WordPiece


class TritonPythonModel:
    def initialize(self, args):
        output = pb_utils.get_output_config_by_name(json.loads(args["model_config"]), "ids")
        self.length = output["dims"][0]
        self.tokenizer = WordPiece(pb_utils.get_model_dir())

    def execute(self, requests):
        return [self.answer(request) for request in requests]

    def answer(self, request):
        # [rows, 1] of bytes objects.
        sentences = pb_utils.get_input_tensor_by_name(request, "sentence").as_numpy()
        try:
            texts = [bytes(sentence).decode("utf-8") for sentence in sentences[:, 0]]
        except UnicodeDecodeError as why:
            # This request fails, with 400; the others of the batch are answered.
            error = pb_utils.TritonError(f"a sentence is not UTF-8: {why}", pb_utils.TritonError.INVALID_ARG)
            return pb_utils.InferenceResponse(error=error)
        ids = np.array([self.tokenizer.encode(text, self.length) for text in texts], dtype=np.int64)
        mask = (ids != 0).astype(np.float32)
        return pb_utils.InferenceResponse([pb_utils.Tensor("ids", ids), pb_utils.Tensor("mask", mask)])
