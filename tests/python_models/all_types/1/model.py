"""Answers each input under the output of its datatype, with what numpy calls it; BF16, which numpy lacks, by DLPack."""

import json

import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def initialize(self, args):
        inputs = json.loads(args["model_config"])["input"]
        self.types = {tensor["name"]: tensor["data_type"] for tensor in inputs}

    def execute(self, requests):
        return [self.answer(request) for request in requests]

    def answer(self, request):
        outputs = []
        for tensor in request.inputs():
            name = tensor.name().replace("IN_", "OUT_")
            data_type = self.types[tensor.name()]
            if data_type == "TYPE_BF16":
                outputs.append(pb_utils.Tensor.from_dlpack(name, tensor))
                continue
            array = tensor.as_numpy()
            assert array.dtype == np.dtype(pb_utils.triton_string_to_numpy(data_type)), array.dtype
            assert array.flags.writeable and list(array.shape) == list(tensor.shape()) and tensor.is_cpu()
            outputs.append(pb_utils.Tensor(name, array))
        return pb_utils.InferenceResponse(outputs)
