"""`Tensor.empty`: outputs that the model writes into a response region, where the server sends them from."""

from operator import index

import numpy as np

import deuteron_channel as channel
from deuteron_memory import NoRoom
from deuteron_tensor import BYTES, PlacedMemory, Tensor, TritonModelException, numpy_datatype, refuse

SIGNATURE = "(name: str, shape: Sequence[int], dtype: numpy.dtype) -> c_python_backend_utils.Tensor"


def empty_tensor(name, shape, dtype):
    """A tensor whose array is in a span of its own. One without elements needs no span."""
    dims, kind = _checked(name, shape, dtype)
    datatype = numpy_datatype(kind)
    if datatype == BYTES:
        raise TritonModelException(
            "Tensor.empty cannot make a tensor of strings: its size depends on them. Use Tensor(name, array)."
        )
    tensor = Tensor.__new__(Tensor)
    tensor._name, tensor._datatype, tensor._data = name, datatype, None
    size = kind.itemsize
    for dimension in dims:
        size *= dimension
    if size == 0:
        tensor._array = np.empty(dims, kind)
        return tensor
    try:
        placed, root = channel.process.memory.place(size)
    except NoRoom as error:
        raise TritonModelException(str(error)) from None
    placed.array = tensor._array = np.ndarray(dims, kind, root)
    tensor._data, tensor._dims = placed, dims
    return tensor


def _checked(name, shape, dtype):
    """The dimensions and numpy's type."""
    if not isinstance(name, str):
        raise refuse("empty()", SIGNATURE, name, shape, dtype)
    if not name:
        raise TritonModelException("Tensor name cannot be an empty string.")
    try:
        dims = (index(shape),) if hasattr(shape, "__index__") else tuple(map(index, shape))
        # numpy takes None for FP64.
        kind = None if dtype is None else np.dtype(dtype)
    except TypeError:
        kind = None
    if kind is None:
        raise refuse("empty()", SIGNATURE, name, shape, dtype)
    if min(dims, default=0) < 0:
        raise ValueError("negative dimensions are not allowed: Tensor.empty got the shape " + str(list(dims)))
    return dims, kind
