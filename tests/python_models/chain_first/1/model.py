"""One link of a chain of models: adds one to what the next one answers, and passes its input tensor on as it came."""

import json

import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def initialize(self, args):
        self.next = json.loads(args["model_config"])["parameters"]["next"]["string_value"]

    def execute(self, requests):
        responses = []
        for request in requests:
            answer = pb_utils.InferenceRequest(
                request_id=request.request_id(),
                model_name=self.next,
                requested_output_names=["y"],
                inputs=request.inputs(),
            ).exec()
            if answer.has_error():
                responses.append(pb_utils.InferenceResponse(error=answer.error()))
                continue
            y = pb_utils.get_output_tensor_by_name(answer, "y").as_numpy()
            responses.append(pb_utils.InferenceResponse([pb_utils.Tensor("y", (y + 1).astype(np.int32))]))
        return responses
