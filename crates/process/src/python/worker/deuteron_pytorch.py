"""PyTorch models where the server has no native engine for them: a Python model that loads TorchScript, or a `model.py` with
a module (`runtime: "model.py"`), and passes inputs and outputs by Triton's rules. The texts are those of the native engine."""

import importlib.util
import inspect
import os
import re
import sys

import numpy as np
import torch

from deuteron_framework import FrameworkModel, Refused, shortened

# The datatypes that Triton's backend has.
TYPES = {
    "TYPE_BOOL": torch.bool,
    "TYPE_UINT8": torch.uint8,
    "TYPE_INT8": torch.int8,
    "TYPE_INT16": torch.int16,
    "TYPE_INT32": torch.int32,
    "TYPE_INT64": torch.int64,
    "TYPE_FP16": torch.float16,
    "TYPE_FP32": torch.float32,
    "TYPE_FP64": torch.float64,
    "TYPE_STRING": None,
}


def index_in(name):
    """The index in a name `<any>__<digits>`; the first two underscores count."""
    found = name.find("__")
    digits = name[found + 2 :]
    if found < 0 or not re.fullmatch("[0-9]*", digits):
        return None
    return int(digits or "0")


def bind_inputs(model, inputs, arguments, warn):
    """The input of each argument, by Triton's rules. `arguments` are names with what they take."""
    if len(arguments) == 1 and arguments[0][1] == "Dict[str, Tensor]":
        return None
    for _, kind in arguments[1:]:
        if kind.startswith("Dict"):
            raise Refused(
                "Multiple inputs of kind DictType were detected. Only a single input of type Dict(str, Tensor) is supported."
            )
    for _, kind in arguments:
        if kind not in ("Tensor", "List[str]"):
            raise Refused(
                "An input of type '" + kind + "' was detected in the model. Only a single input of type Dict(str, Tensor) "
                "or input(s) of type Tensor are supported."
            )
    if len(inputs) != len(arguments):
        raise Refused(
            "unable to load model '" + model + "', configuration expects " + str(len(inputs))
            + " inputs, model provides " + str(len(arguments))
        )
    names = [name for name, _ in arguments]
    by_name = [names.index(port.name) if port.name in names else None for port in inputs]
    by_index = [index_in(port.name) for port in inputs]
    mixed = [name if name is not None else index for name, index in zip(by_name, by_index)]
    if None not in by_name:
        places = by_name
    elif None not in by_index:
        places = by_index
    elif None not in mixed and len(set(mixed)) == len(mixed):
        places = mixed
    else:
        strange = next((port.name for port, place in zip(inputs, mixed) if place is None), "")
        warn(
            "input '" + strange + "' or previous input(s) are neither an input argument to the model '" + model
            + "' nor do they follow the <name>__<index> naming convention. Falling back to enforcing strict ordering from "
            "model configuration."
        )
        places = list(range(len(inputs)))
    ordered = [None] * len(arguments)
    for port, place in zip(inputs, places):
        if place >= len(arguments):
            raise Refused(
                "unable to load model '" + model + "', input '" + port.name + "' is argument " + str(place)
                + ", and the model's forward has " + str(len(arguments)) + " (they count from 0)"
            )
        if (arguments[place][1] == "List[str]") != port.is_strings:
            raise Refused(
                "unable to load model '" + model + "', configuration expects datatype " + port.datatype + " for input '"
                + port.name + "', model provides an argument of type '" + arguments[place][1] + "'"
            )
        if ordered[place] is not None:
            raise Refused(
                "unable to load model '" + model + "', input '" + port.name + "' is argument " + str(place)
                + ", which another input is already"
            )
        ordered[place] = port
    return ordered


def bind_outputs(model, outputs, warn):
    """The element of what the module returns, for each output of the configuration."""
    places = [index_in(port.name) for port in outputs]
    if None not in places:
        return places
    strange = outputs[places.index(None)].name
    warn(
        "output '" + strange + "' or previous output(s) of the model '" + model
        + "' do not follow the <name>__<index> naming convention. Falling back to enforcing strict ordering from model "
        "configuration."
    )
    return list(range(len(outputs)))


class TritonPythonModel(FrameworkModel):
    """A PyTorch model in this process."""

    framework = "PyTorch"
    types = TYPES

    def load(self, directory):
        """Loads TorchScript, or the module of a `model.py`, and binds the names of the configuration to it."""
        for side, ports, configs in (("input", self.inputs, self.config["input"]), ("output", self.outputs, self.config["output"])):
            for port, config in zip(ports, configs):
                self.check_port(side, port, config)
        self.is_inference = self.flag("INFERENCE_MODE", True)
        self.set_threads("INTRA_OP_THREAD_COUNT", torch.set_num_threads)
        self.set_threads("INTER_OP_THREAD_COUNT", torch.set_num_interop_threads)
        is_on_gpu = self.args["model_instance_kind"] == "GPU"
        self.device = torch.device("cuda", int(self.args["model_instance_device_id"])) if is_on_gpu else torch.device("cpu")
        self.load_file(directory)
        self.places = bind_outputs(self.name, self.outputs, self.logger.log_warn)

    def check_port(self, side, port, config):
        """Refuses what the native engine refuses."""
        if config.get("optional"):
            raise Refused(
                "input '" + port.name + "' of model '" + self.name
                + "' is optional, and a PyTorch model takes all its inputs: remove 'optional'"
            )
        if port.is_strings and len(port.shape) > 1:
            hint = ": give dims: [ 1 ] reshape { shape: [ ] }" if self.has_batch_axis else ""
            raise Refused(
                "Triton only supports 1 dimensional List of String as " + side + " for '" + port.name + "' for model '"
                + self.name + "'" + hint
            )

    def flag(self, key, default):
        """A parameter that is true or false."""
        value = self.parameters.get(key)
        if value is None:
            return default
        word = value.strip().lower()
        if word not in ("true", "1", "false", "0"):
            raise Refused(
                "parameter '" + key + "' of model '" + self.name + "' is '" + value + "', expected true or false"
            )
        return word in ("true", "1")

    def set_threads(self, key, apply):
        """A parameter that is a number of threads; none is set by 0 or less."""
        value = self.parameters.get(key)
        if value is None:
            return
        try:
            count = int(value)
        except ValueError:
            raise Refused(
                "parameter '" + key + "' of model '" + self.name + "' is '" + value + "', expected a number of threads"
            )
        if count > 0:
            apply(count)

    def load_file(self, directory):
        """The file of the configuration, or the usual one."""
        config = self.config
        named = config.get("default_model_filename", "")
        if config.get("runtime") == "model.py":
            usual = [name for name in ("model.py", "model.pt") if os.path.exists(os.path.join(directory, name))]
            file = named or (usual or ["model.py"])[0]
        else:
            file = named or "model.pt"
        path = os.path.join(directory, file)
        if not os.path.exists(path):
            raise Refused("unable to find '" + file + "' for model '" + self.name + "'")
        if file.endswith(".py"):
            self.load_class(path, directory)
            return
        with torch.inference_mode(self.is_inference):
            try:
                self.module = torch.jit.load(path, map_location=self.device)
            except Exception as error:
                raise Refused("failed to load model '" + self.name + "': " + shortened(str(error)))
        self.module.eval()
        arguments = self.module.forward.schema.arguments
        arguments = [(argument.name, argument.type.annotation_str) for argument in arguments if argument.name != "self"]
        self.ordered = bind_inputs(self.name, self.inputs, arguments, self.logger.log_warn)
        self.is_dictionary = self.ordered is None

    def load_class(self, path, directory):
        """The first module of the file, with the weights beside it, as Triton's own runtime for it does."""
        sys.path.append(directory)
        stem = os.path.splitext(os.path.basename(path))[0]
        spec = importlib.util.spec_from_file_location(stem, path)
        code = importlib.util.module_from_spec(spec)
        sys.modules[stem] = code
        spec.loader.exec_module(code)
        is_module = lambda value: inspect.isclass(value) and issubclass(value, torch.nn.Module) and value.__module__ == stem
        classes = [value for _, value in inspect.getmembers(code, is_module)]
        # In the order of the file.
        classes.sort(key=lambda value: inspect.getsourcelines(value)[1])
        if not classes:
            raise Refused("model '" + self.name + "': '" + os.path.basename(path) + "' has no subclass of torch.nn.Module")
        self.module = classes[0]()
        weights = os.path.join(directory, stem + ".pt")
        if os.path.exists(weights):
            self.module.load_state_dict(torch.load(weights, map_location="cpu"))
        self.module = self.module.to(self.device).eval()
        self.ordered, self.is_dictionary = self.inputs, False

    def compute(self, given):
        """Runs the module. A run gets copies of its inputs: it may write into them."""
        values = {}
        for port in self.inputs:
            array = given[port.name]
            if port.is_strings:
                values[port.name] = [text.decode() if isinstance(text, bytes) else str(text) for text in array.reshape(-1)]
            else:
                values[port.name] = torch.from_numpy(np.array(array, order="C")).to(self.device)
        with torch.inference_mode(self.is_inference), torch.no_grad():
            if self.is_dictionary:
                returned = self.module(values)
            else:
                returned = self.module(*[values[port.name] for port in self.ordered])
        is_tuple = isinstance(returned, tuple)
        returned = list(returned) if is_tuple else [returned]
        for index, value in enumerate(returned):
            check_kind(value, " at index " + str(index) if is_tuple else "")
        return [self.output(port, place, returned) for port, place in zip(self.outputs, self.places)]

    def output(self, port, place, returned):
        """An output as an array in the configured datatype."""
        if place >= len(returned):
            raise Refused(
                "The output " + port.name + " in the model configuration refers to an output index which doesn't exist. This "
                "model has " + str(len(returned)) + " outputs"
            )
        value = returned[place]
        if isinstance(value, list):
            came = "TYPE_STRING"
        else:
            came = ([name for name, known in TYPES.items() if value.dtype == known] or ["TYPE_INVALID"])[0]
        if came != port.datatype:
            raise Refused(
                "model '" + self.name + "': configuration expects datatype " + port.datatype + " for output '" + port.name
                + "', model provides " + came
            )
        if isinstance(value, list):
            return np.array([text.encode() for text in value], dtype=object)
        # A copy: the module may change its own tensor later.
        return value.detach().cpu().contiguous().clone().numpy()


def check_kind(value, place):
    """Refuses what is neither a tensor nor a list of strings."""
    if isinstance(value, torch.Tensor):
        return
    if isinstance(value, list):
        other = [type(element).__name__ for element in value if not isinstance(element, str)]
        if not other:
            return
        raise ValueError("output" + place + " must be of type Tensor or List[str], received List[" + other[0] + "]")
    raise ValueError(
        "output" + place + " must be of type Tensor, List[str] or Tuple containing one of these two types. It should not be a "
        "List / Dictionary of Tensors or a Scalar"
    )
