"""DLPack in both directions, by `ctypes`: every release of numpy, BF16, which numpy does not have, and memory of a GPU.

The structures are those of dlpack.h, version 0: what all libraries of today understand.
"""

from __future__ import annotations

import ctypes
import weakref

import numpy as np

from deuteron_tensor import BF16, BYTES, DTYPES, DeviceMemory, Tensor, TritonModelException, refuse

CPU, CUDA, CUDA_HOST = 1, 2, 3
CAPSULE_NAME, USED_NAME = b"dltensor", b"used_dltensor"

# Type code and bits in DLPack, by the code of the datatype. The other way round it is the first that fits.
KINDS = {
    1: (6, 8), 2: (1, 8), 3: (1, 16), 4: (1, 32), 5: (1, 64), 6: (0, 8), 7: (0, 16), 8: (0, 32), 9: (0, 64),
    10: (2, 16), 11: (2, 32), 12: (2, 64), 14: (4, 16),
}
DATATYPES = {kind: code for code, kind in KINDS.items()}


class DLTensor(ctypes.Structure):
    """`DLTensor`."""

    _fields_ = [
        ("data", ctypes.c_void_p),
        ("device_type", ctypes.c_int32),
        ("device_id", ctypes.c_int32),
        ("ndim", ctypes.c_int32),
        ("code", ctypes.c_uint8),
        ("bits", ctypes.c_uint8),
        ("lanes", ctypes.c_uint16),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("byte_offset", ctypes.c_uint64),
    ]


class DLManagedTensor(ctypes.Structure):
    """`DLManagedTensor`."""


DELETER = ctypes.CFUNCTYPE(None, ctypes.c_void_p)
DLManagedTensor._fields_ = [("tensor", DLTensor), ("manager_ctx", ctypes.c_void_p), ("deleter", ctypes.c_void_p)]

CAPSULE_DESTRUCTOR = ctypes.CFUNCTYPE(None, ctypes.c_void_p)
capsule_new = ctypes.pythonapi.PyCapsule_New
capsule_new.restype, capsule_new.argtypes = ctypes.py_object, (ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p)
# A name is not copied by Python: those above live as long as the module. In a destructor the capsule has no references
# left, so it must not become an object there.
capsule_is_valid = ctypes.pythonapi.PyCapsule_IsValid
capsule_is_valid.restype, capsule_is_valid.argtypes = ctypes.c_int, (ctypes.c_void_p, ctypes.c_char_p)
capsule_pointer = ctypes.pythonapi.PyCapsule_GetPointer
capsule_pointer.restype, capsule_pointer.argtypes = ctypes.c_void_p, (ctypes.c_void_p, ctypes.c_char_p)
capsule_rename = ctypes.pythonapi.PyCapsule_SetName
capsule_rename.restype, capsule_rename.argtypes = ctypes.c_int, (ctypes.c_void_p, ctypes.c_char_p)

# Objects behind exported capsules, by the address of their structure.
exported = {}


@DELETER
def _delete(address, exported=exported):
    exported.pop(address, None)


@CAPSULE_DESTRUCTOR
def _destroy_capsule(capsule, exported=exported, is_valid=capsule_is_valid, pointer=capsule_pointer, name=CAPSULE_NAME):
    # The tensor was not taken out.
    if is_valid(capsule, name):
        exported.pop(pointer(capsule, name), None)


# Libraries may call them until the very end of the process, after this module is gone.
for function in (_delete, _destroy_capsule):
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(function))


def export_tensor(tensor):
    """A capsule of a tensor. It keeps the memory as long as the library uses it."""
    if tensor._datatype == BYTES:
        raise TritonModelException("DLPack does not have support for string tensors.")
    source = tensor._array if tensor._array is not None else tensor._data
    if isinstance(source, DeviceMemory):
        address, (device_type, device_id), dims = source.address, source.device, tensor._dims
    else:
        if tensor._array is not None:
            source = np.ascontiguousarray(source)
        source = np.asarray(source)
        address, device_type, device_id = source.ctypes.data, CPU, 0
        dims = tuple(tensor.shape())
    shape = (ctypes.c_int64 * max(len(dims), 1))(*dims)
    managed = DLManagedTensor()
    code, bits = KINDS[tensor._datatype]
    managed.tensor = DLTensor(
        address, device_type, device_id, len(dims), code, bits, 1, ctypes.cast(shape, ctypes.POINTER(ctypes.c_int64)),
        None, 0,
    )
    managed.deleter = ctypes.cast(_delete, ctypes.c_void_p).value
    pointer = ctypes.addressof(managed)
    exported[pointer] = (managed, shape, source)
    return capsule_new(pointer, CAPSULE_NAME, ctypes.cast(_destroy_capsule, ctypes.c_void_p).value)


class ForeignTensor:
    """A tensor of another library: freed when the last array that refers to it is gone."""

    def __init__(self, managed):
        self.managed = managed
        if managed.deleter:
            weakref.finalize(self, DELETER(managed.deleter), ctypes.addressof(managed)).atexit = False


def import_tensor(name, source):
    """A `Tensor` of a capsule, or of an object that makes one."""
    if not isinstance(name, str):
        raise refuse("from_dlpack()", "(arg0: str, arg1: object) -> c_python_backend_utils.Tensor", name, source)
    if not name:
        raise TritonModelException("Tensor name cannot be an empty string.")
    if type(source).__name__ != "PyCapsule":
        if not hasattr(source, "__dlpack__") or not hasattr(source, "__dlpack_device__"):
            raise TritonModelException(
                "Provided tensor is not supported. Tensor must be a DLPack capsule         or have `__dlpack__` and "
                "`__dlpack_device__` attributes"
            )
        device_type = int(source.__dlpack_device__()[0])
        if device_type not in (CPU, CUDA, CUDA_HOST):
            raise TritonModelException("DLDevice type " + str(device_type) + " is not support by Python backend.")
        # Of a GPU: the producer puts its work before that of the default stream, which the copy waits for.
        source = source.__dlpack__(stream=1 if device_type == CUDA else None)
    return _import_capsule(name, source)


def _import_capsule(name, capsule):
    if not capsule_is_valid(id(capsule), CAPSULE_NAME):
        raise TritonModelException("The DLPack capsule was used already.")
    managed = DLManagedTensor.from_address(capsule_pointer(id(capsule), CAPSULE_NAME))
    tensor = managed.tensor
    dims = tuple(tensor.shape[: tensor.ndim])
    if tensor.strides and 0 not in dims and not _is_contiguous(dims, tensor.strides):
        raise TritonModelException(
            "DLPack tensor is not contiguous. Only contiguous DLPack tensors that are stored in C-Order are supported."
        )
    if tensor.device_type not in (CPU, CUDA, CUDA_HOST):
        raise TritonModelException(
            "DLDevice type " + str(tensor.device_type) + " is not support by Python backend."
        )
    datatype = DATATYPES.get((tensor.code, tensor.bits)) if tensor.lanes == 1 else None
    if datatype is None:
        raise TritonModelException(
            "DLPack type with code " + str(tensor.code) + ", " + str(tensor.bits) + " bits and " + str(tensor.lanes)
            + " lanes is not supported."
        )
    size = int(np.prod(dims, dtype=np.int64)) * (tensor.bits // 8)
    address = (tensor.data or 0) + tensor.byte_offset
    capsule_rename(id(capsule), USED_NAME)
    owner = ForeignTensor(managed)
    taken = Tensor.__new__(Tensor)
    taken._name, taken._datatype, taken._dims = name, datatype, dims
    taken._array = taken._data = None
    if tensor.device_type == CUDA:
        from deuteron_cuda import CudaMemory

        taken._data = CudaMemory(address, size, tensor.device_id, owner)
        return taken
    memory = (ctypes.c_ubyte * size).from_address(address) if size else bytearray()
    # The array refers to the memory object, and that to its owner.
    if size:
        memory.owner = owner
    raw = np.frombuffer(memory, np.uint8)
    if datatype == BF16:
        taken._data = raw
    else:
        taken._array = raw.view(DTYPES[datatype]).reshape(dims)
    return taken


def _is_contiguous(dims, strides):
    expected = 1
    # Triton does not look at the first dimension, and takes wrong elements where that has a step.
    for index in range(len(dims) - 1, -1, -1):
        if dims[index] != 1:
            if strides[index] != expected:
                return False
            expected *= dims[index]
    return True
