"""Adds up what each sequence brings: by correlation id where the model is told of it, else by row of its batches."""

import json

import numpy
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def initialize(self, args):
        controls = json.loads(args["model_config"])["sequence_batching"]["control_input"]
        self.is_by_id = any(control["name"] == "CORRID" for control in controls)
        self.sums = {}

    def execute(self, requests):
        return [self.answer(row, request) for row, request in enumerate(requests)]

    def answer(self, row, request):
        def number(name):
            return int(pb_utils.get_input_tensor_by_name(request, name).as_numpy().reshape(-1)[0])

        if not number("READY"):
            return output(0)
        key = number("CORRID") if self.is_by_id else row
        total = number("INPUT") + (0 if number("START") else self.sums.get(key, 0))
        self.sums[key] = total
        if self.is_by_id and number("END"):
            total += key
        return output(total)


def output(value):
    tensor = pb_utils.Tensor("OUTPUT", numpy.array([[value]], dtype=numpy.int32))
    return pb_utils.InferenceResponse([tensor])
