"""Calls the model that tells what a request says, with the parameters that it was sent itself."""

import json

import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        (request,) = requests
        call = pb_utils.InferenceRequest(
            model_name="request_echo",
            requested_output_names=["seen"],
            inputs=request.inputs(),
            parameters=json.loads(request.parameters()),
        )
        response = call.exec()
        if response.has_error():
            raise pb_utils.TritonModelException(response.error().message())
        return [pb_utils.InferenceResponse(response.output_tensors())]
