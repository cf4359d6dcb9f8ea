"""Returns from execute what it should not."""

import numpy as np
import triton_python_backend_utils as pb_utils


def response(*names):
    return pb_utils.InferenceResponse([pb_utils.Tensor(name, np.array(["fine"], dtype=object)) for name in names])


class TritonPythonModel:
    def execute(self, requests):
        self.case = pb_utils.get_input_tensor_by_name(requests[0], "case").as_numpy()[0].decode()
        return getattr(self, self.case)()

    def right(self):
        return [response("result")]

    def nothing(self):
        return None

    def nothing_in_a_list(self):
        return [None]

    def empty_list(self):
        return []

    def two_for_one(self):
        return [response("result"), response("result")]

    def none_too_many(self):
        return [response("result"), None]

    def a_tuple(self):
        return (response("result"),)

    def a_dict(self):
        return {"result": response("result")}

    def a_number(self):
        return 7

    def a_response(self):
        return response("result")

    def a_generator(self):
        return (response("result") for _ in range(1))

    def a_subclass_of_list(self):
        return type("Responses", (list,), {})([response("result")])

    def a_string_in_a_list(self):
        return ["result"]

    def a_tensor_in_a_list(self):
        return [pb_utils.Tensor("result", np.array(["fine"], dtype=object))]

    def an_error_in_a_list(self):
        return [pb_utils.TritonError("not wrapped")]

    def no_outputs(self):
        return [pb_utils.InferenceResponse([])]

    def default_response(self):
        return [pb_utils.InferenceResponse()]

    def another_name(self):
        return [response("other")]

    def another_name_too(self):
        return [response("other", "result")]

    def the_same_name_twice(self):
        return [response("result", "result")]

    def another_datatype(self):
        return [pb_utils.InferenceResponse([pb_utils.Tensor("result", np.array([1.5, 2.5]))])]

    def another_shape(self):
        return [pb_utils.InferenceResponse([pb_utils.Tensor("result", np.array([[["a"], ["b"]]], dtype=object))])]

    def a_scalar(self):
        return [pb_utils.InferenceResponse([pb_utils.Tensor("result", np.array(b"one", dtype=object))])]

    def an_error_and_outputs(self):
        error = pb_utils.TritonError("the error counts", pb_utils.TritonError.NOT_FOUND)
        return [pb_utils.InferenceResponse(response("result").output_tensors(), error)]
