"""A model that answers with its input, scaled, and with the sum of each row. Replace what it computes."""

import json
from typing import Any, Dict, List

import numpy as np
import triton_python_backend_utils as pb_utils  # The server provides it.


class TritonPythonModel:
    """The server makes one object of this class in each Python process, one process for each instance."""

    def initialize(self, args: Dict[str, str]) -> None:
        """Called once, before the first request: load weights here. What it raises fails the load of the model.

        args has model_name, model_version, model_config (JSON), model_repository (the model's directory),
        model_instance_kind (CPU, GPU or MODEL), model_instance_device_id and model_instance_name.
        """
        config: Dict[str, Any] = json.loads(args["model_config"])
        parameters = config.get("parameters", {})
        self.scale = float(parameters.get("scale", {}).get("string_value", "1.0"))

        # The type that config.pbtxt gives the output, for numpy.
        output = pb_utils.get_output_config_by_name(config, "OUTPUT")
        self.output_type = pb_utils.triton_string_to_numpy(output["data_type"])

    def execute(self, requests: List[Any]) -> List[Any]:
        """Called with the requests of one batch, which are not put together: each has its own tensors, of the shape
        [rows, ...] if max_batch_size is above 0. Returns one response for each, in the same order.
        """
        return [self.answer(request) for request in requests]

    def answer(self, request: Any) -> Any:
        # An array on the memory that the request came in: it is not copied. It stays valid as long as it is kept.
        # TYPE_STRING comes as an array of bytes objects.
        values: np.ndarray = pb_utils.get_input_tensor_by_name(request, "INPUT").as_numpy()

        # An error of one request leaves the others of the batch alone; an exception would fail them all.
        if not np.isfinite(values).all():
            error = pb_utils.TritonError("INPUT has values that are not finite", pb_utils.TritonError.INVALID_ARG)
            return pb_utils.InferenceResponse(error=error)

        scaled = (values * self.scale).astype(self.output_type)
        sums = scaled.sum(axis=-1, keepdims=True).astype(self.output_type)
        return pb_utils.InferenceResponse([pb_utils.Tensor("OUTPUT", scaled), pb_utils.Tensor("SUM", sums)])

    def finalize(self) -> None:
        """Called once, when the model is unloaded or the server ends. May be left out."""
        pb_utils.Logger.log_info("the model is unloaded")
