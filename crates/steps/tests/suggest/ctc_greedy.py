# rows 8
# input logits FP32 -1 4
# output text BYTES 1
import json
import numpy as np
import triton_python_backend_utils as pb_utils
import os


class TritonPythonModel:
    def initialize(self, args):
        with open(os.path.join(pb_utils.get_model_dir(), "vocab.json"), encoding="utf-8") as f:
            vocabulary = json.load(f)
        self.symbols = {index: symbol for symbol, index in vocabulary.items()}
        self.blank = 0

    def decode(self, ids):
        chars = []
        previous = None
        for index in ids:
            if index != previous and index != self.blank:
                chars.append(self.symbols[int(index)])
            previous = index
        return "".join(chars)

    def execute(self, requests):
        responses = []
        for request in requests:
            logits = pb_utils.get_input_tensor_by_name(request, "logits").as_numpy()
            predicted = np.argmax(logits, axis=-1)
            texts = [self.decode(row) for row in predicted]
            out = np.array(texts, dtype=object).reshape(-1, 1)
            responses.append(pb_utils.InferenceResponse([pb_utils.Tensor("text", out)]))
        return responses
