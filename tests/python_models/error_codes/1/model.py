"""Fails single requests of a batch, each with the code that it asks for: -1 is no error, -2 an error without a code."""

import triton_python_backend_utils as pb_utils


CODES = "UNKNOWN INTERNAL NOT_FOUND INVALID_ARG UNAVAILABLE UNSUPPORTED ALREADY_EXISTS CANCELLED".split()


class TritonPythonModel:
    def execute(self, requests):
        responses = []
        for request in requests:
            code = pb_utils.get_input_tensor_by_name(request, "code")
            number = int(code.as_numpy()[0, 0])
            if number == -1:
                responses.append(pb_utils.InferenceResponse([code]))
            elif number == -2:
                responses.append(pb_utils.InferenceResponse(error=pb_utils.TritonError("an error without a code")))
            else:
                error = pb_utils.TritonError(f"error code: {number}", getattr(pb_utils.TritonError, CODES[number]))
                # The outputs beside an error are ignored.
                responses.append(pb_utils.InferenceResponse([code], error))
        return responses
