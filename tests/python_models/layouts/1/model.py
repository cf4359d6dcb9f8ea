"""Outputs that are not one block of memory in C order, and an input that is changed in place."""

import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        responses = []
        for request in requests:
            matrix = pb_utils.get_input_tensor_by_name(request, "matrix").as_numpy()
            before = matrix.copy()
            outputs = {
                "transposed": before.T,
                "reversed": before[::-1, ::-1],
                "every_second": before[:, ::2],
                "fortran": np.asfortranarray(before),
                "broadcast": np.broadcast_to(before, (2, 2, 3)),
                "nothing": before[:0],
                "words": np.array([[f"w{value}" for value in row] for row in before], dtype=np.object_).T,
            }
            matrix += 100
            outputs["in_place"] = matrix
            responses.append(
                pb_utils.InferenceResponse([pb_utils.Tensor(name, array) for name, array in outputs.items()])
            )
        return responses
