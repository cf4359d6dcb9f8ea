"""Waits on its event loop: in a batch for all requests at once, and over the loop that the server keeps."""

import asyncio

import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def initialize(self, args):
        self.loops = set()

    async def execute(self, requests):
        self.loops.add(id(asyncio.get_running_loop()))
        return await asyncio.gather(*[self.answer(request) for request in requests])

    async def answer(self, request):
        x = pb_utils.get_input_tensor_by_name(request, "x").as_numpy()
        await asyncio.sleep(0.01)
        if x[0] < 0:
            raise ValueError("x is negative")
        return pb_utils.InferenceResponse([pb_utils.Tensor("y", x + len(self.loops))])
