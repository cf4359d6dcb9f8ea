"""Answers all its outputs, in an order of its own, whatever was asked for, and says what was."""

import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        responses = []
        for request in requests:
            x = pb_utils.get_input_tensor_by_name(request, "x").as_numpy()
            names = request.requested_output_names()
            asked = [f"{type(names).__name__} of {len(names)}", *sorted(names)]
            responses.append(
                pb_utils.InferenceResponse(
                    [
                        pb_utils.Tensor("asked", np.array(asked, dtype=object)),
                        pb_utils.Tensor("difference", x[:1] - x[1:]),
                        pb_utils.Tensor("sum", x.sum(keepdims=True)),
                    ]
                )
            )
        return responses
