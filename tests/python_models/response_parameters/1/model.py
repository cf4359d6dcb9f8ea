"""Sends parameters with its responses, where the module knows them (since January 2025)."""

import json

import numpy as np
import triton_python_backend_utils as pb_utils

CASES = {
    "none": {},
    "each_type": {"flag": True, "number": -7, "text": "café"},
    "false_and_zero": {"flag": False, "number": 0, "text": ""},
    "a_float": {"ratio": 0.5},
    "a_list": ["flag"],
    "a_nested_list": {"list": [1]},
    "a_key_that_is_no_text": {1: "one"},
    "nothing": {"nothing": None},
}


class TritonPythonModel:
    def execute(self, requests):
        responses = []
        for request in requests:
            case = pb_utils.get_input_tensor_by_name(request, "case").as_numpy()[0].decode()
            result = pb_utils.Tensor("result", np.array([case], dtype=object))
            response = pb_utils.InferenceResponse([result], parameters=CASES[case])
            assert json.loads(response.parameters()) == CASES[case]
            responses.append(response)
        return responses
