"""The preprocessing of an image model by Pillow: bytes of a file to a normalised tensor, channels first."""

import io
import json

import numpy as np
import triton_python_backend_utils as pb_utils
from PIL import Image


class TritonPythonModel:
    def initialize(self, args):
        self.model_config = model_config = json.loads(args["model_config"])
        output_config = pb_utils.get_output_config_by_name(model_config, "OUTPUT")
        self.output_dtype = pb_utils.triton_string_to_numpy(output_config["data_type"])
        _, self.height, self.width = output_config["dims"]

    def execute(self, requests):
        responses = []
        for request in requests:
            in_0 = pb_utils.get_input_tensor_by_name(request, "INPUT")
            try:
                image = Image.open(io.BytesIO(in_0.as_numpy().tobytes())).convert("RGB")
            except OSError:
                error = pb_utils.TritonError("the input is no image that can be read", pb_utils.TritonError.INVALID_ARG)
                responses.append(pb_utils.InferenceResponse(error=error))
                continue
            image = np.asarray(image.resize((self.width, self.height), Image.NEAREST))
            # A view with other strides: the server is to send it in C order.
            normalised = (image.astype(self.output_dtype) / 255.0 - 0.5).transpose(2, 0, 1)
            responses.append(pb_utils.InferenceResponse(output_tensors=[pb_utils.Tensor("OUTPUT", normalised)]))
        return responses
