"""The first step: numbers of a text. Replace `count`."""

from typing import Any, List

import numpy as np
import triton_python_backend_utils as pb_utils  # The server provides it.


def count(text: str) -> List[int]:
    """Letters, exclamation marks and question marks."""
    return [sum(letter.isalpha() for letter in text), text.count("!"), text.count("?")]


class TritonPythonModel:
    def execute(self, requests: List[Any]) -> List[Any]:
        return [self.answer(request) for request in requests]

    def answer(self, request: Any) -> Any:
        texts = pb_utils.get_input_tensor_by_name(request, "TEXT").as_numpy().reshape(-1)
        counts = [count(text.decode("utf-8", "replace")) for text in texts]
        return pb_utils.InferenceResponse([pb_utils.Tensor("COUNTS", np.array(counts, np.float32))])
