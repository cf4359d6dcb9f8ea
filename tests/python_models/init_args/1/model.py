"""Tells what initialize was given, and what a model sees of its process."""

import json
import os
import sys

import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def initialize(self, args):
        assert type(args) is dict and all(type(key) is type(value) is str for key, value in args.items())
        config = args["model_config"]
        self.args = [f"{key} = {value}" for key, value in sorted(args.items()) if key != "model_config"]
        self.config = json.dumps(json.loads(config), sort_keys=True)
        model, version = args["model_repository"], os.path.join(args["model_repository"], args["model_version"])
        self.process = [
            f"__name__ {__name__}",
            f"__file__ {__file__}",
            f"sys.argv {sys.argv}",
            f"version directory in sys.path {version in sys.path}",
            f"model directory in sys.path {model in sys.path}",
            f"get_model_dir() is the version directory {pb_utils.get_model_dir() == version}",
            f"greeting {json.loads(config)['parameters']['greeting']['string_value']}",
        ]

    def execute(self, requests):
        def tensor(name, texts):
            return pb_utils.Tensor(name, np.array(texts, dtype=object))

        return [
            pb_utils.InferenceResponse(
                [
                    tensor("args", self.args),
                    tensor("model_config", [self.config]),
                    tensor("process", self.process),
                ]
            )
            for _ in requests
        ]
