"""Caffe2 models (`platform: "caffe2_netdef"`) by an old PyTorch that still has Caffe2: a Python model that loads the two
networks of such a model and passes inputs and outputs by the names of their blobs."""

import os

import numpy as np

from deuteron_framework import FrameworkModel, Refused

TYPES = {
    "TYPE_BOOL": np.bool_,
    "TYPE_UINT8": np.uint8,
    "TYPE_INT8": np.int8,
    "TYPE_INT16": np.int16,
    "TYPE_INT32": np.int32,
    "TYPE_INT64": np.int64,
    "TYPE_FP16": np.float16,
    "TYPE_FP32": np.float32,
    "TYPE_FP64": np.float64,
}
# The latest release on PyPI that was tried.
ADVICE = (
    "Caffe2 models need a Python with a PyTorch that still has Caffe2: make an environment of Python 3.8 with torch==1.4.0, "
    "numpy<1.24, protobuf<3.21, future and six, and name it by the model's parameter EXECUTION_ENV_PATH or by "
    "--backend-config=python,interpreter=PATH; or export the model to ONNX (caffe2.python.onnx.frontend)"
)


class TritonPythonModel(FrameworkModel):
    """A Caffe2 model in this process, whose workspace has it alone."""

    framework = "Caffe2"
    types = TYPES

    def load(self, directory):
        """Runs the network that fills the weights, and makes the other."""
        try:
            from caffe2.proto import caffe2_pb2
            from caffe2.python import workspace
        # Without its library Caffe2 ends the interpreter.
        except (ImportError, SystemExit) as error:
            raise Refused(ADVICE + " (" + str(error) + ")")
        self.workspace = workspace
        file = self.config.get("default_model_filename") or "model.netdef"
        nets = []
        for name in ("init_" + file, file):
            path = os.path.join(directory, name)
            if not os.path.exists(path):
                raise Refused("unable to find '" + name + "' for model '" + self.name + "'")
            net = caffe2_pb2.NetDef()
            with open(path, "rb") as stream:
                try:
                    net.ParseFromString(stream.read())
                except Exception:
                    raise Refused("failed to load model '" + self.name + "': '" + name + "' is no network of Caffe2")
            nets.append(net)
        initial, self.net = nets
        self.check_names("input", self.inputs, self.net.external_input)
        self.check_names("output", self.outputs, self.net.external_output)
        try:
            workspace.RunNetOnce(initial)
            # Blobs must be there before a network that reads them is made.
            for port in self.inputs:
                workspace.FeedBlob(port.name, np.zeros([1] * len(port.shape), TYPES[port.datatype]))
            workspace.CreateNet(self.net, True)
        except Exception as error:
            raise Refused("failed to load model '" + self.name + "': " + str(error).split(" Error from operator", 1)[0])

    def check_names(self, side, ports, allowed):
        """Refuses names that are no blobs of the network."""
        for port in ports:
            if port.name not in allowed:
                raise Refused(
                    "unexpected inference " + side + " '" + port.name + "', allowed " + side + "s are: " + ", ".join(sorted(allowed))
                )

    def compute(self, given):
        """Feeds the inputs, runs the network, and fetches the outputs."""
        for port in self.inputs:
            self.workspace.FeedBlob(port.name, np.ascontiguousarray(given[port.name]))
        if not self.workspace.RunNet(self.net.name):
            raise RuntimeError("the network did not run")
        return [self.fetched(port) for port in self.outputs]

    def fetched(self, port):
        """An output in the configured datatype."""
        array = np.array(self.workspace.FetchBlob(port.name))
        if array.dtype != TYPES[port.datatype]:
            came = ([name for name, known in TYPES.items() if array.dtype == known] or ["TYPE_INVALID"])[0]
            raise Refused(
                "model '" + self.name + "': configuration expects datatype " + port.datatype + " for output '" + port.name
                + "', model provides " + came
            )
        return array
