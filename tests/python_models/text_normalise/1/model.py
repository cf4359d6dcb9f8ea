"""The text front of a speech model: Unicode normal form, numbers spelled out, spaces folded."""

import re
import unicodedata

import numpy as np
import triton_python_backend_utils as pb_utils

DIGITS = "zero one two three four five six seven eight nine".split()


def normalise(text):
    text = unicodedata.normalize("NFKC", text).lower()
    text = re.sub(r"\d", lambda digit: f" {DIGITS[int(digit.group())]} ", text)
    return re.sub(r"\s+", " ", re.sub(r"[^\w\s']", "", text)).strip()


class TritonPythonModel:
    def execute(self, requests):
        responses = []
        for request in requests:
            texts = pb_utils.get_input_tensor_by_name(request, "INPUT_TEXT")
            texts = [normalise(text.decode("utf-8")) for text in texts.as_numpy()]
            output = np.array([text.encode("utf-8") for text in texts], dtype=np.object_)
            lengths = np.array([len(text) for text in texts], dtype=np.int32)
            responses.append(
                pb_utils.InferenceResponse(
                    [pb_utils.Tensor("OUTPUT_TEXT", output), pb_utils.Tensor("LENGTH", lengths)]
                )
            )
        return responses
