"""Fails in the ways in which Python fails."""

import json

import numpy as np
import triton_python_backend_utils as pb_utils


class OwnError(Exception):
    pass


class TritonPythonModel:
    def execute(self, requests):
        case = pb_utils.get_input_tensor_by_name(requests[0], "case").as_numpy()[0].decode()
        getattr(self, case)()
        result = pb_utils.Tensor("result", np.array([case], dtype=object))
        return [pb_utils.InferenceResponse([result]) for _ in requests]

    def nothing(self):
        pass

    def value_error(self):
        raise ValueError("boom")

    def no_message(self):
        raise ValueError

    def key_error(self):
        {}["missing"]

    def own_error(self):
        raise OwnError("mine", 42)

    def model_exception(self):
        raise pb_utils.TritonModelException("a message of the model")

    def unicode_message(self):
        raise ValueError("café 東京 \u2028 \"quoted\" \\ \t")

    def several_lines(self):
        raise ValueError("one\ntwo\n\nthree")

    def system_exit(self):
        raise SystemExit(3)

    def keyboard_interrupt(self):
        raise KeyboardInterrupt()

    def generator_exit(self):
        raise GeneratorExit("closed")

    def chained(self):
        try:
            json.loads("{")
        except ValueError as error:
            raise RuntimeError("the outer") from error

    def deep(self, depth=3):
        if depth == 0:
            raise LookupError("at the bottom")
        self.deep(depth - 1)

    def syntax_error(self):
        compile("a b", "text", "exec")

    def assertion(self):
        assert 1 == 2, "not equal"

    def stop_iteration(self):
        next(iter(()))
