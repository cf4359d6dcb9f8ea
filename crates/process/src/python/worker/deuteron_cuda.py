"""Outputs that are in the memory of a GPU: copied to the CPU's when they are sent, by the driver that the model uses."""

from __future__ import annotations

import ctypes

import numpy as np

from deuteron_tensor import DeviceMemory, TritonModelException

driver = None


def _driver():
    global driver
    if driver is None:
        try:
            driver = ctypes.CDLL("libcuda.so.1")
        except OSError as error:
            raise TritonModelException("An output is in the memory of a GPU, but there is no driver: " + str(error)) from None
        check(driver.cuInit(0), "cuInit")
    return driver


def check(result, function):
    """Fails where the driver does."""
    if result != 0:
        raise TritonModelException("Failed to copy an output from the GPU: " + function + " returned " + str(result))


class CudaMemory(DeviceMemory):
    """Memory of a GPU, which its owner frees."""

    __slots__ = ("address", "size", "device", "owner")

    def __init__(self, address, size, device_id, owner):
        self.address = address
        self.size = size
        self.device = (2, device_id)
        self.owner = owner

    def __len__(self):
        return self.size

    def copy_to(self, target, offset):
        """Copies it into a mapping, once the work of the default stream is done."""
        cuda = _driver()
        device, context, old = ctypes.c_int(), ctypes.c_void_p(), ctypes.c_void_p()
        check(cuda.cuDeviceGet(ctypes.byref(device), self.device[1]), "cuDeviceGet")
        # The context that all libraries of the process share.
        check(cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), device), "cuDevicePrimaryCtxRetain")
        try:
            check(cuda.cuCtxPushCurrent_v2(context), "cuCtxPushCurrent")
            try:
                memory = np.ndarray(self.size, np.uint8, target, offset)
                copy = cuda.cuMemcpyDtoH_v2
                copy.argtypes = (ctypes.c_void_p, ctypes.c_uint64, ctypes.c_size_t)
                check(copy(memory.ctypes.data, self.address, self.size), "cuMemcpyDtoH")
            finally:
                cuda.cuCtxPopCurrent_v2(ctypes.byref(old))
        finally:
            cuda.cuDevicePrimaryCtxRelease_v2(device)
