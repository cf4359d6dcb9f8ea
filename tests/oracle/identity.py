"""Answers each input back under the output of the same number, after `execute_delay_ms`."""

import json
import time

import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def initialize(self, args):
        config = json.loads(args["model_config"])
        delay = config["parameters"].get("execute_delay_ms", {"string_value": "0"})
        self.delay = int(delay["string_value"]) / 1000
        self.datatypes = [output["data_type"] for output in config["output"]]

    def execute(self, requests):
        time.sleep(self.delay)
        return [self.answer(request) for request in requests]

    def answer(self, request):
        wanted = set(request.requested_output_names())
        outputs = []
        for index, datatype in enumerate(self.datatypes):
            name = f"OUTPUT{index}"
            if name in wanted:
                tensor = pb_utils.get_input_tensor_by_name(request, f"INPUT{index}")
                outputs.append(copy(name, tensor, datatype))
        return pb_utils.InferenceResponse(outputs)


def copy(name, tensor, datatype):
    if datatype == "TYPE_BF16":  # numpy has no such type
        return pb_utils.Tensor.from_dlpack(name, tensor.to_dlpack())
    return pb_utils.Tensor(name, tensor.as_numpy())
