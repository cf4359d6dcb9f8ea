"""Repeats each element of its input from a thread, after execute has returned, as the example of the Python backend."""

import json
import threading
import time

import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def initialize(self, args):
        self.model_config = model_config = json.loads(args["model_config"])
        out_config = pb_utils.get_output_config_by_name(model_config, "OUT")
        idx_config = pb_utils.get_output_config_by_name(model_config, "IDX")
        self.out_dtype = pb_utils.triton_string_to_numpy(out_config["data_type"])
        self.idx_dtype = pb_utils.triton_string_to_numpy(idx_config["data_type"])
        # To track response threads so that we can delay the finalizing of the model until all of them are done.
        self.inflight_thread_count = 0
        self.inflight_thread_count_lck = threading.Lock()

    def execute(self, requests):
        for request in requests:
            self.process_request(request)
        return None

    def process_request(self, request):
        in_input = pb_utils.get_input_tensor_by_name(request, "IN").as_numpy()
        delay_input = pb_utils.get_input_tensor_by_name(request, "DELAY").as_numpy()
        if in_input.shape != delay_input.shape:
            request.get_response_sender().send(
                pb_utils.InferenceResponse(
                    error=pb_utils.TritonError(f"expected IN and DELAY of one shape, got {in_input.shape} {delay_input.shape}")
                ),
                flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL,
            )
            return
        # The thread outlives the request's arrays, so it gets copies.
        thread = threading.Thread(
            target=self.response_thread,
            args=(request.get_response_sender(), in_input.copy(), delay_input.copy()),
            daemon=True,
        )
        with self.inflight_thread_count_lck:
            self.inflight_thread_count += 1
        thread.start()
        wait_input = pb_utils.get_input_tensor_by_name(request, "WAIT").as_numpy()
        time.sleep(wait_input[0] / 1000)

    def response_thread(self, response_sender, in_input, delay_input):
        for idx in range(in_input.size):
            time.sleep(delay_input[idx] / 1000)
            out_output = pb_utils.Tensor("OUT", np.array([in_input[idx]], self.out_dtype))
            idx_output = pb_utils.Tensor("IDX", np.array([idx], self.idx_dtype))
            response_sender.send(pb_utils.InferenceResponse(output_tensors=[idx_output, out_output]))
        response_sender.send(flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
        with self.inflight_thread_count_lck:
            self.inflight_thread_count -= 1

    def finalize(self):
        while True:
            with self.inflight_thread_count_lck:
                if self.inflight_thread_count == 0:
                    return
            time.sleep(0.05)
