"""The postprocessing of a classifier: the two best labels of a file in the version's directory."""

import json
import os

import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def initialize(self, args):
        self.model_config = json.loads(args["model_config"])
        # The file lies beside this one.
        path = os.path.join(os.path.dirname(os.path.realpath(__file__)), "labels.json")
        with open(path, encoding="utf-8") as file:
            self.labels = json.load(file)
        self.top = pb_utils.get_output_config_by_name(self.model_config, "label")["dims"][0]

    def execute(self, requests):
        responses = []
        for request in requests:
            logits = pb_utils.get_input_tensor_by_name(request, "logits").as_numpy()
            index = np.argsort(-logits, axis=1, kind="stable")[:, : self.top]
            best = np.take_along_axis(logits, index, axis=1)
            # Strings as str objects, not bytes: the server encodes them.
            label = np.array([[self.labels[str(number)] for number in row] for row in index], dtype=object)
            is_sure = (best[:, :1] - best[:, 1:]) > 1
            responses.append(
                pb_utils.InferenceResponse(
                    output_tensors=[
                        pb_utils.Tensor("label", label),
                        pb_utils.Tensor("index", index.astype(np.uint32)),
                        pb_utils.Tensor("is_sure", is_sure),
                    ]
                )
            )
        return responses
