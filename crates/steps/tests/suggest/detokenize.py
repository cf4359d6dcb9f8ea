# rows 0
# input ids INT64 -1 -1
# output text BYTES -1
import json
import numpy as np
import triton_python_backend_utils as pb_utils
import os
from tokenizers import Tokenizer


class TritonPythonModel:
    def initialize(self, args):
        self.tokenizer = Tokenizer.from_file(os.path.join(pb_utils.get_model_dir(), "tokenizer.json"))

    def execute(self, requests):
        responses = []
        for request in requests:
            ids = pb_utils.get_input_tensor_by_name(request, "ids").as_numpy()
            texts = self.tokenizer.decode_batch(ids.tolist(), skip_special_tokens=True)
            responses.append(pb_utils.InferenceResponse([pb_utils.Tensor("text", np.array(texts, dtype=object))]))
        return responses
