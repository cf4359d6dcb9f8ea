"""Code in more than one file: beside this one by a relative import, as a package, and in the model's directory."""

import triton_python_backend_utils as pb_utils
from beside import OFFSET
from shared_by_versions import SCALE

from .beside import add
from .package import square
from .package.deeper import halve


class TritonPythonModel:
    def execute(self, requests):
        responses = []
        for request in requests:
            x = pb_utils.get_input_tensor_by_name(request, "x").as_numpy()
            y = halve(square(add(x, OFFSET))) * x.dtype.type(SCALE)
            responses.append(pb_utils.InferenceResponse([pb_utils.Tensor("y", y)]))
        return responses
