"""Shared by the server's own Python models of other frameworks: inputs and outputs of the configuration, batches that are
gathered along the first dimension and cut apart, and outputs that are compared with the configuration."""

import json
import re

import numpy as np

import triton_python_backend_utils as pb_utils

# Characters of a framework's text that go to clients.
FAILURE_MAX = 2000
# Beginning of the line that names an error.
ERROR = re.compile(r"^[A-Za-z0-9._]*(Error|Exception): ", re.MULTILINE)
# Words of a text that speaks of the machine or of the framework, and of one that blames shapes or values of a request. The
# same as those of the server's `backend/blame.rs`.
OWN_FAULTS = (
    "alloc", "cublas", "cuda", "cudnn", "doesn't support", "does not support", "internal error", "no kernel",
    "not implemented", "not supported", "no such file", "out of memory", "thread", "unsupported",
)
REQUEST_FAULTS = (
    "axes", "axis", "batch size", "broadcast", "could not convert", "dimension", " dim ", " dims ",
    "divisible", "divide by zero", "division by zero", "features", "greater than", "incompatible", "indices",
    "index", "invalid value", "less than", "mismatch", "must match", "out of bound", "out of data bounds",
    "out of range", "rank", "shape", "unknown categor",
)
# The fields that set a control of a sequence, and their datatypes.
CONTROL_TYPES = (("int32_false_true", "TYPE_INT32"), ("fp32_false_true", "TYPE_FP32"), ("bool_false_true", "TYPE_BOOL"))
NOT_MADE = ("batch_input", "batch_output")


class Refused(Exception):
    """The model does not fit its configuration, or its outputs do not."""


class Port:
    """An input or output of the configuration, which has one of these datatypes."""

    def __init__(self, config, side, model, has_batch_axis, types):
        self.name = config["name"]
        self.datatype = config["data_type"]
        # The server reshapes: this is what the model sees.
        dims = config["reshape"].get("shape", []) if "reshape" in config else config["dims"]
        self.shape = ([-1] if has_batch_axis else []) + [int(size) for size in dims]
        self.is_strings = self.datatype == "TYPE_STRING"
        if self.datatype not in types:
            raise Refused(
                "unsupported datatype " + self.datatype + " for " + side + " '" + self.name + "' for model '" + model + "'"
            )


def shortened(text):
    """The last error in a text of a framework's, without the places in its code, in the model's, and in memory."""
    text = text.split("Exception raised from", 1)[0].rstrip()
    errors = list(ERROR.finditer(text))
    text = text[errors[-1].start() :] if errors else text
    return text if len(text) <= FAILURE_MAX else text[:FAILURE_MAX] + " …"


def blames_request(text):
    """True if a framework's text blames the shapes or values of the request."""
    text = text.lower()
    return any(word in text for word in REQUEST_FAULTS) and not any(word in text for word in OWN_FAULTS)


class FrameworkModel:
    """A model in this process. A framework says how it is loaded (`load`), run (`compute`), and what its datatypes are."""

    framework = ""
    types = {}

    def initialize(self, args):
        """Reads the configuration and loads the model."""
        self.args = args
        self.config = json.loads(args["model_config"])
        self.name = args["model_name"]
        self.logger = pb_utils.Logger
        self.parameters = {key: value["string_value"] for key, value in self.config.get("parameters", {}).items()}
        self.has_batch_axis = int(self.config.get("max_batch_size", 0)) > 0
        try:
            given = [field for field in NOT_MADE if self.config.get(field)]
            if given:
                raise Refused("model '" + self.name + "' has '" + given[0] + "', which is not made in Python")
            self.inputs, self.outputs = self.ports("input"), self.ports("output")
            self.load(args["version_directory"])
        except Refused as refusal:
            raise pb_utils.TritonModelException(str(refusal))

    def ports(self, side):
        """The inputs or outputs of the configuration."""
        listed = self.config[side] + self.of_sequences(side)
        return [Port(io, side, self.name, self.has_batch_axis, self.types) for io in listed]

    def of_sequences(self, side):
        """The inputs and outputs of a model that serves sequences which the server makes and keeps: controls and states."""
        batching = self.config.get("sequence_batching") or {}
        made = []
        if side == "input":
            for control_input in batching.get("control_input", []):
                control = control_input["control"][0]
                kinds = [name for key, name in CONTROL_TYPES if control.get(key)]
                datatype = (kinds or [control.get("data_type")])[0]
                made.append({"name": control_input["name"], "data_type": datatype, "dims": [1]})
        for state in batching.get("state", []):
            made.append({"name": state[side + "_name"], "data_type": state["data_type"], "dims": state["dims"]})
        known = [io["name"] for io in self.config[side]]
        return [io for io in made if io["name"] not in known]

    def execute(self, requests):
        """Runs requests together, or one by one where together they fail: a bad one fails alone."""
        together = self.has_batch_axis or len(requests) == 1
        try:
            if together:
                return self.run(requests)
        except Exception as error:
            if len(requests) == 1:
                return [pb_utils.InferenceResponse(error=self.failure(requests[0], error))]
        return [self.execute([request])[0] for request in requests]

    def failure(self, request, error):
        """The error of a request that failed: its own fault where the framework blames its shapes or values."""
        if isinstance(error, Refused):
            return pb_utils.TritonError(str(error))
        why = shortened(str(error))
        told = self.framework + " execute failure: " + why
        if not blames_request(why):
            return pb_utils.TritonError(told)
        given = [(port.name, pb_utils.get_input_tensor_by_name(request, port.name)) for port in self.inputs]
        shapes = ["'" + name + "' [" + ",".join(map(str, tensor.as_numpy().shape)) + "]" for name, tensor in given if tensor is not None]
        told = "model '" + self.name + "': " + told + "; the inputs were " + ", ".join(shapes)
        return pb_utils.TritonError(told, pb_utils.TritonError.INVALID_ARG)

    def run(self, requests):
        """Gathers the inputs, runs the model, and cuts the outputs apart."""
        given, rows = {}, [0] * len(requests)
        for port in self.inputs:
            parts = [pb_utils.get_input_tensor_by_name(request, port.name).as_numpy() for request in requests]
            if self.has_batch_axis:
                rows = [part.shape[0] for part in parts]
            given[port.name] = np.concatenate(parts) if len(parts) > 1 else parts[0]
        answers = [[] for _ in requests]
        for port, array in zip(self.outputs, self.compute(given)):
            self.check_shape(port, array, sum(rows))
            begin = 0
            for answer, count in zip(answers, rows):
                part = array[begin : begin + count] if self.has_batch_axis else array
                begin += count
                answer.append(pb_utils.Tensor(port.name, part))
        return [pb_utils.InferenceResponse(output_tensors=answer) for answer in answers]

    def check_shape(self, port, array, rows):
        """Refuses an output whose shape is not that of the configuration."""
        if array.ndim == 0:
            raise Refused("output '" + port.name + "' is a scalar which is not supported.")
        want = [rows] + port.shape[1:] if self.has_batch_axis else port.shape
        if len(want) == array.ndim and all(size in (-1, have) for size, have in zip(want, array.shape)):
            return
        text = lambda shape: "[" + ",".join(map(str, shape)) + "]"
        raise Refused(
            "output '" + port.name + "' of model '" + self.name + "' must have shape " + text(want) + " but came with "
            + text(array.shape)
        )
