"""A model for calls by others: twice the input, and its negative. It refuses 13 with a code, and fails at 666."""

import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        return [self.answer(request) for request in requests]

    def answer(self, request):
        x = pb_utils.get_input_tensor_by_name(request, "x").as_numpy()
        if 13 in x:
            return pb_utils.InferenceResponse(
                error=pb_utils.TritonError("13 is not doubled", pb_utils.TritonError.INVALID_ARG)
            )
        if 666 in x:
            raise ValueError("the number of the beast")
        return pb_utils.InferenceResponse([pb_utils.Tensor("y", x * 2), pb_utils.Tensor("negative", -x)])
