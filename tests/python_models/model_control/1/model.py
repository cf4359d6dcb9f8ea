"""Loads and unloads other models, with and without a configuration and files of its own, and tells what came of it."""

import json

import numpy as np
import triton_python_backend_utils as pb_utils

PROGRAM = b"""
import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        y = pb_utils.Tensor("y", np.array([42], dtype=np.int32))
        return [pb_utils.InferenceResponse([y]) for _ in requests]
"""

CONFIG = {
    "backend": "python",
    "input": [{"name": "x", "data_type": "TYPE_INT32", "dims": [-1]}],
    "output": [{"name": "y", "data_type": "TYPE_INT32", "dims": [-1]}],
    "instance_group": [{"kind": "KIND_CPU"}],
}


def ready(name, *version):
    return f"{name} {' '.join(version)} ready: {pb_utils.is_model_ready(name, *version)}"


def called(name):
    x = pb_utils.Tensor("x", np.array([1], dtype=np.int32))
    answer = pb_utils.InferenceRequest(model_name=name, requested_output_names=["y"], inputs=[x]).exec()
    if answer.has_error():
        return answer.error().message()
    return f"{name} {answer.output_tensors()[0].as_numpy().tolist()}"


class TritonPythonModel:
    def execute(self, requests):
        responses = []
        for request in requests:
            case = pb_utils.get_input_tensor_by_name(request, "case").as_numpy()[0].decode()
            try:
                result = list(getattr(self, case)())
            except Exception as error:
                result = [f"{type(error).__name__}: {error}"]
            result = pb_utils.Tensor("result", np.array(result, dtype=object))
            responses.append(pb_utils.InferenceResponse([result]))
        return responses

    def load_and_unload(self):
        yield ready("double")
        pb_utils.load_model(model_name="double")
        yield ready("double")
        yield ready("double", "1")
        yield ready("double", "9")
        yield called("double")
        pb_utils.unload_model("double")
        # The unload goes on behind: its requests end first.
        while pb_utils.is_model_ready("double"):
            pass
        yield ready("double")

    def load_with_a_config(self):
        pb_utils.load_model(model_name="double", config=json.dumps({**CONFIG, "max_batch_size": 0}))
        yield called("double")
        pb_utils.unload_model("double")

    def load_with_files(self):
        pb_utils.load_model("double", json.dumps(CONFIG), {"file:1/model.py": PROGRAM})
        yield called("double")
        pb_utils.unload_model("double")

    def load_unknown(self):
        pb_utils.load_model("nope")

    def load_broken(self):
        pb_utils.load_model("raises_in_initialize")

    def load_with_a_wrong_config(self):
        pb_utils.load_model("double", config="{")

    def unload_unknown(self):
        yield f"unloaded: {pb_utils.unload_model('nope')}"

    def unload_with_dependents(self):
        yield f"unloaded: {pb_utils.unload_model('nope', True)}"

    def ready_unknown(self):
        yield ready("nope")

    def ready_of_a_wrong_version(self):
        yield ready("model_control", "one")

    def itself_ready(self):
        yield ready("model_control")

    def wrong_arguments(self):
        for name, arguments in {
            "load_model": [(), (None,), ("m", None), ("m", "", []), ("m", "", {"file:1/x": 1})],
            "unload_model": [(), (None,), ("m", None), ("m", "yes")],
            "is_model_ready": [(), (None,), ("m", 1), ("m", None)],
        }.items():
            for given in arguments:
                try:
                    outcome = getattr(pb_utils, name)(*given)
                except TypeError:
                    outcome = "TypeError"
                except Exception as error:
                    outcome = f"{type(error).__name__}: {error}"
                yield f"{name}{given}: {outcome}"
