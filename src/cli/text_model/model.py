"""A model that tells the mood of texts. Replace `score`."""

from typing import Any, Dict, List

import numpy as np
import triton_python_backend_utils as pb_utils  # The server provides it.

NEGATIVE = {"awful", "bad", "hate", "poor", "sad", "terrible", "wrong"}
POSITIVE = {"fine", "good", "great", "happy", "love", "nice", "right"}


def score(text: str) -> List[float]:
    """The scores of one text, in the order of labels.txt."""
    words = [word.strip(".,;:!?").lower() for word in text.split()]
    negative = sum(word in NEGATIVE for word in words)
    positive = sum(word in POSITIVE for word in words)
    found = negative + positive
    return [negative / found, positive / found] if found else [0.5, 0.5]


class TritonPythonModel:
    def initialize(self, args: Dict[str, str]) -> None:
        """Load a tokenizer and weights here; args["model_repository"] is the directory of the model."""

    def execute(self, requests: List[Any]) -> List[Any]:
        return [self.answer(request) for request in requests]

    def answer(self, request: Any) -> Any:
        # An array of bytes objects: a text for each row.
        texts = pb_utils.get_input_tensor_by_name(request, "TEXT").as_numpy().reshape(-1)
        scores = [score(text.decode("utf-8", "replace")) for text in texts]
        return pb_utils.InferenceResponse([pb_utils.Tensor("SCORES", np.array(scores, np.float32))])
