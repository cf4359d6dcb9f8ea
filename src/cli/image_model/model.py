"""A model that tells the main colour of images. Replace `score`."""

import io
from typing import Any, Dict, List

import numpy as np
import triton_python_backend_utils as pb_utils  # The server provides it.


def decode(contents: bytes) -> np.ndarray:
    """The pixels of an image file: rows, columns, and red, green, blue from 0 to 255."""
    if contents.startswith(b"P6"):
        _, columns, rows, _, pixels = contents.split(maxsplit=4)
        return np.frombuffer(pixels[: int(rows) * int(columns) * 3], np.uint8).reshape(int(rows), int(columns), 3)
    try:
        from PIL import Image
    except ImportError as error:
        raise ValueError("images other than PPM need Pillow: pip install pillow") from error
    return np.asarray(Image.open(io.BytesIO(contents)).convert("RGB"))


def score(pixels: np.ndarray) -> np.ndarray:
    """The scores of one image, in the order of labels.txt."""
    means = pixels.reshape(-1, 3).mean(axis=0)
    return (means / max(means.sum(), 1.0)).astype(np.float32)


class TritonPythonModel:
    def initialize(self, args: Dict[str, str]) -> None:
        """Load weights here; args["model_repository"] is the directory of the model."""

    def execute(self, requests: List[Any]) -> List[Any]:
        return [self.answer(request) for request in requests]

    def answer(self, request: Any) -> Any:
        contents = pb_utils.get_input_tensor_by_name(request, "IMAGE").as_numpy().reshape(-1)[0]
        try:
            scores = score(decode(contents))
        except Exception as error:  # A request's image is at fault, not the model.
            return pb_utils.InferenceResponse(error=pb_utils.TritonError(str(error), pb_utils.TritonError.INVALID_ARG))
        return pb_utils.InferenceResponse([pb_utils.Tensor("SCORES", scores)])
