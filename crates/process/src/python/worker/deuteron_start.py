"""The start of a model: its import, `initialize` and `auto_complete_config`."""

import json
import os
import sys

import numpy as np

from deuteron_archive import publish
from deuteron_threads import limit

# Flag of the code object of a coroutine function.
CO_COROUTINE = 0x80

# The class of the model, in a process that had imported it as a template.
imported_class = None


class Refused(Exception):
    """The model cannot be used; the text is the whole reason."""


class ModelFinder:
    """Finds the file of the model under the name that it has in Triton, whatever else is on the path.

    `1.model` is a module of the namespace package `1`, which is the version's directory: so the model can say
    `from .helper import x`.
    """

    def __init__(self, settings):
        self.name = settings["module_name"]
        self.file = settings["model_file"]
        self.package = self.name.rpartition(".")[0]
        self.directory = os.path.dirname(self.file)

    def find_spec(self, name, path=None, target=None):
        """The spec of the model or of its package."""
        if name == self.name:
            from importlib.util import spec_from_file_location

            return spec_from_file_location(name, self.file)
        if name == self.package:
            initial = os.path.join(self.directory, "__init__.py")
            if os.path.exists(initial):
                from importlib.util import spec_from_file_location

                return spec_from_file_location(name, initial, submodule_search_locations=[self.directory])
            spec = type(sys.__spec__)(name, None, is_package=True)
            spec.submodule_search_locations = [self.directory]
            return spec
        return None


def import_model(settings):
    """Imports the model and returns its class."""
    if imported_class is not None:
        return imported_class
    sent = __spec__.loader.sources
    limit(settings.get("threads"))
    if settings["module_name"] in sent:
        # One of the server's own, which runs models of another framework.
        __import__(settings["module_name"])
        return sys.modules[settings["module_name"]].TritonPythonModel
    file = settings["model_file"]
    if not os.path.exists(file):
        raise Refused("Python model file not found in '" + file + "'")
    if not file.endswith(".py"):
        raise Refused("Model name must end with '.py'. Model name is \"" + os.path.basename(file) + '".')
    if settings["backend_directory"]:
        sys.path.append(settings["backend_directory"])
    else:
        sys.path.append(settings["version_directory"])
        sys.path.append(settings["model_directory"])
    archive = publish(sent)
    if archive is not None:
        sys.path.append(archive)
    # It exists before the model, so that no package of the same name takes its place.
    import triton_python_backend_utils  # noqa: F401

    sys.meta_path.insert(0, ModelFinder(settings))
    __import__(settings["module_name"])
    module = sys.modules[settings["module_name"]]
    if not hasattr(module, "TritonPythonModel"):
        raise Refused("AttributeError: module '" + module.__name__ + "' has no attribute 'TritonPythonModel'")
    return module.TritonPythonModel


def load(process):
    """Makes the model and initializes it. Returns what the server is told of it."""
    settings = process.settings
    process.model = model = import_model(settings)()
    if hasattr(model, "initialize"):
        args = dict(settings["args"])
        if settings["module_name"] in __spec__.loader.sources:
            args["version_directory"] = settings["version_directory"]
        model.initialize(args)
    execute = getattr(model, "execute", None)
    code = getattr(execute, "__code__", None)
    return {
        "is_ready": hasattr(model, "is_ready"),
        "execute": execute is not None,
        "is_async": bool(getattr(code, "co_flags", 0) & CO_COROUTINE),
        "pid": os.getpid(),
        "python": ".".join(map(str, sys.version_info[:3])),
        "numpy": np.__version__,
    }


def complete(process):
    """Has the model complete its configuration. Returns it as JSON."""
    settings = process.settings
    model = import_model(settings)
    from deuteron_config import ModelConfig

    config = ModelConfig(json.dumps(settings["config"]))
    if hasattr(model, "auto_complete_config"):
        config = model.auto_complete_config(config)
    if not isinstance(config, ModelConfig):
        raise Refused(
            "auto_complete_config function in model '" + process.name
            + "' must return a valid pb.ModelConfig object."
        )
    return json.dumps(config._model_config)
