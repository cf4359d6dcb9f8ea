"""Calls the model that the request names and raises its error, as pipelines of several models do."""

import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        responses = []
        for request in requests:
            x = pb_utils.get_input_tensor_by_name(request, "x")
            model_name = pb_utils.get_input_tensor_by_name(request, "model").as_numpy()[0].decode("utf-8")
            infer_request = pb_utils.InferenceRequest(
                model_name=model_name, requested_output_names=["y"], inputs=[pb_utils.Tensor("x", x.as_numpy())]
            )
            infer_response = infer_request.exec()
            if infer_response.has_error():
                raise pb_utils.TritonModelException(infer_response.error().message())
            y = pb_utils.get_output_tensor_by_name(infer_response, "y")
            responses.append(pb_utils.InferenceResponse(output_tensors=[y]))
        return responses
