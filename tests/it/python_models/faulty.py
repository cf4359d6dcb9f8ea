"""A model that fails at one step of its life in one way; both are in `fault.txt` beside it."""

import ctypes
import os
import random
import signal
import threading
import time

import numpy as np
import triton_python_backend_utils as pb_utils


def own_files():
    numbers = [int(name) for name in os.listdir("/proc/self/fd")]
    return [number for number in numbers if number > 2]


def write_everywhere(contents):
    for number in own_files():
        try:
            os.set_blocking(number, False)
            os.write(number, contents)
        except OSError:
            pass


def hang():
    while True:
        time.sleep(1)


def raise_error():
    raise ValueError("the fault")


FAULTS = {
    "kill": lambda: os.kill(os.getpid(), signal.SIGKILL),
    "exit": lambda: os._exit(7),
    "abort": os.abort,
    "segfault": lambda: ctypes.string_at(0),
    "terminate": lambda: os.kill(os.getpid(), signal.SIGTERM),
    "hang": hang,
    "raise": raise_error,
    "zeros": lambda: write_everywhere(bytes(4096)),
    "ones": lambda: write_everywhere(b"\xff" * 4096),
    "noise": lambda: write_everywhere(b"\xff\xff\xff\xff" + random.Random(7).randbytes(100_000)),
    # Empty frames of every kind, known and unknown.
    "frames": lambda: write_everywhere(b"".join(b"\x01\x00\x00\x00" + bytes([kind]) for kind in range(256))),
    # The beginning of a frame that never ends.
    "half": lambda: write_everywhere(b"\x00\x10\x00\x00\x03half"),
    "close": lambda: [os.close(number) for number in own_files()],
    "threads": lambda: [threading.Thread(target=hang, daemon=True).start() for _ in range(50)],
}

with open(os.path.join(os.path.dirname(__file__), "fault.txt")) as file:
    STEP, FAULT = file.read().split()


def pass_step(step):
    if step == STEP:
        FAULTS[FAULT]()


def fail_within_the_call():
    # The model that is called says that it runs.
    began = os.path.join(os.path.dirname(__file__), "../../held/began")
    while not os.path.exists(began):
        time.sleep(0.01)
    pass_step("call")


pass_step("import")


class TritonPythonModel:
    def initialize(self, args):
        while os.path.exists(os.path.join(os.path.dirname(__file__), "hold.txt")):
            time.sleep(0.01)
        pass_step("initialize")
        if STEP == "idle":
            threading.Timer(0.3, pass_step, args=("idle",)).start()

    def execute(self, requests):
        (request,) = requests
        case = pb_utils.get_input_tensor_by_name(request, "case").as_numpy()[0].decode()
        if case == "fault":
            pass_step("execute")
            if STEP == "call":
                threading.Thread(target=fail_within_the_call).start()
                x = pb_utils.Tensor("x", np.array([1], dtype=np.int32))
                pb_utils.InferenceRequest(model_name="held", requested_output_names=["y"], inputs=[x]).exec()
        result = pb_utils.Tensor("result", np.array([case, str(os.getpid())], dtype=object))
        return [pb_utils.InferenceResponse([result])]

    def finalize(self):
        pass_step("finalize")
