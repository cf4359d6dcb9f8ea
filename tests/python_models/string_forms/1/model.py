"""Strings as bytes objects, as str objects, as numpy's `S`, and as objects of other types."""

import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        responses = []
        for request in requests:
            text = pb_utils.get_input_tensor_by_name(request, "text").as_numpy()
            assert text.dtype == np.object_ and all(isinstance(element, bytes) for element in text)
            as_str = np.array([element.decode("utf-8", "replace") for element in text], dtype=np.object_)
            lengths = np.array([len(element) for element in text], dtype=np.int32)
            objects = np.array([[length, None] for length in lengths.tolist()], dtype=np.object_).reshape(-1, 2)
            responses.append(
                pb_utils.InferenceResponse(
                    [
                        pb_utils.Tensor("same", text),
                        pb_utils.Tensor("as_str", as_str),
                        pb_utils.Tensor("as_s", text.astype(np.bytes_)),
                        pb_utils.Tensor("lengths", lengths),
                        pb_utils.Tensor("objects", objects),
                    ]
                )
            )
        return responses
