"""The preprocessing of a language model: texts to ids by Hugging Face's `tokenizers`."""

import json
from pathlib import Path

import numpy as np
import triton_python_backend_utils as pb_utils
from tokenizers import Tokenizer


class TritonPythonModel:
    def initialize(self, args):
        model_config = json.loads(args["model_config"])
        name = model_config["parameters"]["tokenizer_file"]["string_value"]
        self.tokenizer = Tokenizer.from_file(str(Path(args["model_repository"]) / args["model_version"] / name))
        self.tokenizer.enable_padding(pad_id=0, pad_token="[PAD]")
        # One attribute for each output's datatype, as the templates of many repositories do.
        for name in ["INPUT_ID", "REQUEST_INPUT_LEN"]:
            output_config = pb_utils.get_output_config_by_name(model_config, name)
            dtype = pb_utils.triton_string_to_numpy(output_config["data_type"])
            setattr(self, name.lower() + "_dtype", dtype)

    def execute(self, requests):
        responses = []
        for request in requests:
            query = pb_utils.get_input_tensor_by_name(request, "TEXT").as_numpy()
            encodings = self.tokenizer.encode_batch([text[0].decode("utf-8") for text in query])
            ids = np.array([encoding.ids for encoding in encodings], dtype=self.input_id_dtype)
            lengths = np.array(
                [[sum(encoding.attention_mask)] for encoding in encodings], dtype=self.request_input_len_dtype
            )
            responses.append(
                pb_utils.InferenceResponse(
                    [pb_utils.Tensor("INPUT_ID", ids), pb_utils.Tensor("REQUEST_INPUT_LEN", lengths)]
                )
            )
        return responses

    def finalize(self):
        print("Cleaning up...")
