# rows 8
# input text BYTES 1
# output input_ids INT64 -1
import json
import numpy as np
import triton_python_backend_utils as pb_utils
from transformers import AutoTokenizer


class TritonPythonModel:
    def initialize(self, args):
        self.tokenizer = AutoTokenizer.from_pretrained(args["model_repository"])

    def execute(self, requests):
        responses = []
        for request in requests:
            texts = [t.decode().lower() for t in pb_utils.get_input_tensor_by_name(request, "text").as_numpy().flatten()]
            ids = self.tokenizer(texts, padding=True, return_tensors="np")["input_ids"]
            responses.append(pb_utils.InferenceResponse([pb_utils.Tensor("input_ids", ids)]))
        return responses
