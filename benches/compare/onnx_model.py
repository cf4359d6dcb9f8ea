"""An ONNX model with one input and one output on ONNX Runtime, for a tritonserver that has no backend but Python's: one run
for a batch."""

import pathlib

import numpy
import onnxruntime
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def initialize(self, args):
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = 1
        path = pathlib.Path(args["model_repository"], args["model_version"], "model.onnx")
        self.session = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
        self.names = [value.name for value in self.session.get_inputs()], [value.name for value in self.session.get_outputs()]

    def execute(self, requests):
        arrays = [pb_utils.get_input_tensor_by_name(request, self.names[0][0]).as_numpy() for request in requests]
        (output,) = self.session.run(self.names[1], {self.names[0][0]: numpy.concatenate(arrays)})
        ends = numpy.cumsum([len(array) for array in arrays])[:-1]
        parts = numpy.split(output, ends)
        return [pb_utils.InferenceResponse([pb_utils.Tensor(self.names[1][0], part)]) for part in parts]
