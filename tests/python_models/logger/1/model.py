"""Writes a line at each level, from execute and from a thread, and to both standard streams."""

import sys
import threading

import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def initialize(self, args):
        pb_utils.Logger.log_info(f"initialize of {args['model_instance_name']}")

    def execute(self, requests):
        logger = pb_utils.Logger
        for request in requests:
            case = pb_utils.get_input_tensor_by_name(request, "case").as_numpy()[0].decode()
            if case == "levels":
                logger.log("by log, as it is")
                logger.log("by log, information", logger.INFO)
                logger.log("by log, warning", level=logger.WARNING)
                logger.log("by log, error", logger.ERROR)
                logger.log("by log, verbose", logger.VERBOSE)
                logger.log_info("by its function, information")
                logger.log_warn("by its function, warning")
                logger.log_error("by its function, error")
                logger.log_verbose("by its function, verbose")
            elif case == "thread":
                thread = threading.Thread(target=logger.log_info, args=("from a thread",))
                thread.start()
                thread.join()
            elif case == "streams":
                print("to the standard output")
                print("to the standard error", file=sys.stderr)
                print("without an end", end="")
                sys.stdout.flush()
            elif case == "hostile":
                logger.log_info("two\nlines, \x1b[31mred\x1b[0m, a \x00 and a \r")
                print("two\r\x1b[2Klines of output")
            elif case == "long":
                logger.log_info("x" * 1_000_000)
                print("y" * 1_000_000)
        result = pb_utils.Tensor("result", np.array(["logged"], dtype=object))
        return [pb_utils.InferenceResponse([result]) for _ in requests]

    def finalize(self):
        pb_utils.Logger.log_info("finalize of the logger")
