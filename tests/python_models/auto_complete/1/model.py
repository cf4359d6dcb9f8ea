"""Brings its whole configuration by itself; the file says the backend alone."""

import json

import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    @staticmethod
    def auto_complete_config(auto_complete_model_config):
        inputs = [
            {"name": "INPUT0", "data_type": "TYPE_FP32", "dims": [4]},
            {"name": "INPUT1", "data_type": "TYPE_FP32", "dims": [4], "optional": True},
        ]
        outputs = [{"name": "OUTPUT0", "data_type": "TYPE_FP32", "dims": [4]}]
        # Demonstrate the usage of `as_dict`, `add_input`, `add_output`, `set_max_batch_size` and `set_dynamic_batching`.
        config = auto_complete_model_config.as_dict()
        input_names = [entry["name"] for entry in config["input"]]
        output_names = [entry["name"] for entry in config["output"]]
        for entry in inputs:
            # Names that the file has already are not added again.
            if entry["name"] not in input_names:
                auto_complete_model_config.add_input(entry)
        for entry in outputs:
            if entry["name"] not in output_names:
                auto_complete_model_config.add_output(entry)
        auto_complete_model_config.set_max_batch_size(3)
        auto_complete_model_config.set_dynamic_batching()
        return auto_complete_model_config

    def initialize(self, args):
        self.config = json.loads(args["model_config"])
        output = pb_utils.get_output_config_by_name(self.config, "OUTPUT0")
        self.dtype = pb_utils.triton_string_to_numpy(output["data_type"])

    def execute(self, requests):
        responses = []
        for request in requests:
            total = pb_utils.get_input_tensor_by_name(request, "INPUT0").as_numpy()
            other = pb_utils.get_input_tensor_by_name(request, "INPUT1")
            if other is not None:
                total = total + other.as_numpy()
            responses.append(pb_utils.InferenceResponse([pb_utils.Tensor("OUTPUT0", total.astype(self.dtype))]))
        return responses
