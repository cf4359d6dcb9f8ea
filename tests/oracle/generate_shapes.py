"""Answers with what it was asked: a tensor, the shapes of its inputs, and its parameters."""
import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        return [self.answer(request) for request in requests]

    def answer(self, request):
        shapes = []
        for name in ["F", "M", "S"]:
            tensor = pb_utils.get_input_tensor_by_name(request, name)
            if tensor is not None:
                shapes += tensor.as_numpy().shape
        given = pb_utils.get_input_tensor_by_name(request, "F").as_numpy()
        parameters = np.array([[request.parameters().encode()]], dtype=object)
        return pb_utils.InferenceResponse(
            [
                pb_utils.Tensor("F_OUT", given),
                pb_utils.Tensor("shape", np.array([shapes], np.int64)),
                pb_utils.Tensor("P", parameters),
            ]
        )
