# rows 16
# input text BYTES 1
# output ids INT64 -1
# output mask INT64 -1
import json
import numpy as np
import triton_python_backend_utils as pb_utils
from pathlib import Path
from tokenizers import Tokenizer


class TritonPythonModel:
    def initialize(self, args):
        self.tokenizer = Tokenizer.from_file(str(Path(args["model_repository"]) / args["model_version"] / "tokenizer.json"))
        self.tokenizer.enable_truncation(max_length=64)
        self.tokenizer.enable_padding(pad_id=0, pad_token="[PAD]")

    def execute(self, requests):
        responses = []
        for request in requests:
            texts = pb_utils.get_input_tensor_by_name(request, "text").as_numpy().reshape(-1)
            encodings = self.tokenizer.encode_batch([text.decode("utf-8") for text in texts])
            ids = np.array([encoding.ids for encoding in encodings], dtype=np.int64)
            mask = np.array([encoding.attention_mask for encoding in encodings], dtype=np.int64)
            responses.append(pb_utils.InferenceResponse([pb_utils.Tensor("ids", ids), pb_utils.Tensor("mask", mask)]))
        return responses
