# rows 16
# input TEXT BYTES 1
# output input_ids INT64 -1
# output attention_mask INT64 -1
import json
import numpy as np
import triton_python_backend_utils as pb_utils
from transformers import AutoTokenizer


class TritonPythonModel:
    def initialize(self, args):
        self.tokenizer = AutoTokenizer.from_pretrained("distilbert-base-uncased")

    def execute(self, requests):
        responses = []
        for request in requests:
            query = pb_utils.get_input_tensor_by_name(request, "TEXT").as_numpy()
            query = [t[0].decode("UTF-8") for t in query]
            pb_utils.Logger.log_info("tokenizing")
            tokens = self.tokenizer(text=query, padding=True, truncation=True, max_length=128, return_tensors="np")
            tensors = [
                pb_utils.Tensor("input_ids", tokens["input_ids"].astype(np.int64)),
                pb_utils.Tensor("attention_mask", tokens["attention_mask"].astype(np.int64)),
            ]
            responses.append(pb_utils.InferenceResponse(output_tensors=tensors))
        return responses
