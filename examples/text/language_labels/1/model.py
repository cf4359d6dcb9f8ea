"""The names of the likeliest languages, best first, and how likely they are."""

import json
import os

import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def initialize(self, args):
        output = pb_utils.get_output_config_by_name(json.loads(args["model_config"]), "labels")
        self.count = output["dims"][0]
        # A file beside this one.
        with open(os.path.join(pb_utils.get_model_dir(), "labels.txt"), encoding="utf-8") as file:
            self.labels = np.array(file.read().split(), dtype=object)

    def execute(self, requests):
        return [self.answer(request) for request in requests]

    def answer(self, request):
        probabilities = pb_utils.get_input_tensor_by_name(request, "probabilities").as_numpy()
        best = np.argsort(-probabilities, axis=1, kind="stable")[:, : self.count]
        scores = np.take_along_axis(probabilities, best, axis=1)
        # An array of str objects goes out as BYTES.
        return pb_utils.InferenceResponse(
            [pb_utils.Tensor("labels", self.labels[best]), pb_utils.Tensor("scores", scores)]
        )
