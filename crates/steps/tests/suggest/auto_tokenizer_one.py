# rows 0
# input TEXT BYTES 1
# output input_ids INT32 1 256
# output attention_mask INT32 1 256
# output token_type_ids INT32 1 256
import json
import numpy as np
import triton_python_backend_utils as pb_utils
from transformers import AutoTokenizer


class TritonPythonModel:
    def initialize(self, args):
        model_dir = f"{args['model_repository']}/{args['model_version']}"
        self.tokenizer = AutoTokenizer.from_pretrained(model_dir)
        self.output_names = ["input_ids", "attention_mask", "token_type_ids"]

    def execute(self, requests):
        responses = []
        for request in requests:
            text = pb_utils.get_input_tensor_by_name(request, "TEXT").as_numpy()[0].decode()
            encoded = self.tokenizer("query: " + text, padding="max_length", truncation=True, max_length=256, return_tensors="np")
            tensors = [pb_utils.Tensor(name, encoded[name].astype(np.int32)) for name in self.output_names]
            responses.append(pb_utils.InferenceResponse(output_tensors=tensors))
        return responses
