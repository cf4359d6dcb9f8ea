"""A WordPiece tokenizer in plain Python, with its vocabulary beside this file. Pads to the longest text of a request."""

import json
import os

import numpy as np
import triton_python_backend_utils as pb_utils

PAD, UNKNOWN, START, END = "[PAD]", "[UNK]", "[CLS]", "[SEP]"


class TritonPythonModel:
    def initialize(self, args):
        model_config = json.loads(args["model_config"])
        self.max_length = int(model_config["parameters"]["max_length"]["string_value"])
        folder = os.path.join(args["model_repository"], args["model_version"])
        with open(os.path.join(folder, "vocab.txt"), encoding="utf-8") as file:
            self.vocab = {line.rstrip("\n"): number for number, line in enumerate(file)}
        ids_config = pb_utils.get_output_config_by_name(model_config, "input_ids")
        self.ids_dtype = pb_utils.triton_string_to_numpy(ids_config["data_type"])
        mask_config = pb_utils.get_output_config_by_name(model_config, "attention_mask")
        self.mask_dtype = pb_utils.triton_string_to_numpy(mask_config["data_type"])

    def execute(self, requests):
        responses = []
        for request in requests:
            texts = pb_utils.get_input_tensor_by_name(request, "text").as_numpy()
            rows = [self.encode(text.decode("utf-8")) for text in texts.reshape(-1)]
            longest = max(len(row) for row in rows)
            input_ids = np.full((len(rows), longest), self.vocab[PAD], dtype=self.ids_dtype)
            attention_mask = np.zeros((len(rows), longest), dtype=self.mask_dtype)
            for number, row in enumerate(rows):
                input_ids[number, : len(row)] = row
                attention_mask[number, : len(row)] = 1
            responses.append(
                pb_utils.InferenceResponse(
                    output_tensors=[
                        pb_utils.Tensor("input_ids", input_ids),
                        pb_utils.Tensor("attention_mask", attention_mask),
                    ]
                )
            )
        return responses

    def encode(self, text):
        tokens = [piece for word in text.lower().split() for piece in self.pieces(word)]
        tokens = [START] + tokens[: self.max_length - 2] + [END]
        return [self.vocab[token] for token in tokens]

    def pieces(self, word):
        pieces, start = [], 0
        while start < len(word):
            end = len(word)
            while end > start and self.spelled(word, start, end) not in self.vocab:
                end -= 1
            if end == start:
                return [UNKNOWN]
            pieces.append(self.spelled(word, start, end))
            start = end
        return pieces

    @staticmethod
    def spelled(word, start, end):
        return ("##" if start else "") + word[start:end]
