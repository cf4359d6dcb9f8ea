"""`Tensor`, the datatypes, and BYTES in both directions."""

from __future__ import annotations

from struct import Struct

import numpy as np

from deuteron_channel import U32

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Sequence, Union

ndarray = np.ndarray

# Codes of datatypes, as Triton's.
BYTES, BF16 = 13, 14
NUMPY_TYPES = {
    1: np.bool_,
    2: np.uint8,
    3: np.uint16,
    4: np.uint32,
    5: np.uint64,
    6: np.int8,
    7: np.int16,
    8: np.int32,
    9: np.int64,
    10: np.float16,
    11: np.float32,
    12: np.float64,
    13: np.object_,
}
# numpy types of the datatypes; BYTES and BF16 have none.
DTYPES = {code: np.dtype(kind) for code, kind in NUMPY_TYPES.items() if code != BYTES}
DATATYPES = {np.dtype(kind): code for code, kind in NUMPY_TYPES.items()}

# Dimensions that a tensor may have in a message.
RANK_MAX = 32


class TritonModelException(Exception):
    """A failure of the Python backend itself."""

    __module__ = "c_python_backend_utils"


class DeviceMemory:
    """Contents that are in the memory of a GPU: `device` as in DLPack, `copy_to(mapping, offset)`, and a length."""


class PlacedMemory:
    """Contents that are in a response region already (`Tensor.empty`), and the array by which the model writes them."""

    __slots__ = ("slot", "region", "offset", "size", "array")

    def __len__(self):
        return self.size


def refuse(function, signature, *given):
    """The `TypeError` that Triton's bindings raise for arguments of the wrong type."""
    what = "constructor" if function == "__init__()" else "function"
    return TypeError(
        function + ": incompatible " + what + " arguments. The following argument types are supported:\n    1. " + signature
        + "\n\nInvoked with: " + ", ".join(map(repr, given))
    )


class Tensor:
    """An input or an output: a name and an array.

    The array of an input is a view of the memory that it came in, and may be written to.
    """

    __module__ = "c_python_backend_utils"
    # `_data` is what is sent where that is not the array: BYTES as they are on the wire, BF16, memory of a GPU, a place
    # in a response region. It goes with `_dims`.
    __slots__ = ("_name", "_datatype", "_array", "_data", "_dims", "__weakref__")

    def __init__(self, name: str, array: np.ndarray, /) -> None:
        if array.__class__ is not ndarray or name.__class__ is not str or not name:
            name = _checked_name(name, array)
        datatype = DATATYPES.get(array.dtype)
        if datatype is None:
            datatype = numpy_datatype(array.dtype)
        self._name = name
        self._datatype = datatype
        self._array = array
        if datatype == 13:
            # At once, so that the array may be used for the next tensor.
            self._data = join_strings(array)
            self._dims = array.shape
        else:
            self._data = None

    def name(self) -> str:
        """The name of the input or output."""
        return self._name

    def as_numpy(self) -> np.ndarray:
        """The contents. Those of an input are not copied; BYTES are objects of `bytes`."""
        array = self._array
        return array if array is not None else self._read_array()

    def shape(self) -> list[int]:
        """The dimensions."""
        return list(self._array.shape if self._data is None else self._dims)

    def is_cpu(self) -> bool:
        """True if the contents are in the memory of the CPU."""
        return not isinstance(self._data, DeviceMemory)

    def triton_dtype(self):
        """Not usable, as in Triton: the type of its result has no binding."""
        raise TypeError(
            "Unable to convert function return value to a Python type! The signature was\n\t"
            "(self: c_python_backend_utils.Tensor) -> TRITONSERVER_datatype_enum"
        )

    @staticmethod
    def empty(name: str, shape: Union[int, Sequence[int]], dtype: Any) -> Tensor:
        """An output for the model to write by `as_numpy()`, in the memory that it is sent from: it is not copied.

        An extension of this server. As with `numpy.empty` its contents are not set. The array is read-only once the tensor
        was sent.
        """
        import deuteron_placed

        return deuteron_placed.empty_tensor(name, shape, dtype)

    @staticmethod
    def from_dlpack(name: str, tensor: object, /) -> Tensor:
        """Takes a tensor of another library: a DLPack capsule, or an object with `__dlpack__`."""
        import deuteron_dlpack

        return deuteron_dlpack.import_tensor(name, tensor)

    def to_dlpack(self):
        """A DLPack capsule of the contents, which are not copied."""
        import deuteron_dlpack

        return deuteron_dlpack.export_tensor(self)

    def __dlpack__(self, stream=None):
        return self.to_dlpack()

    def __dlpack_device__(self) -> tuple[int, int]:
        return (1, 0) if self.is_cpu() else self._data.device

    def _read_array(self):
        if not self.is_cpu():
            raise TritonModelException("Tensor is stored in GPU and cannot be converted to NumPy.")
        if self._datatype == BF16:
            raise TritonModelException(
                "Tensor dtype is BF16 and cannot be converted to NumPy. Use to_dlpack() and from_dlpack() instead."
            )
        items = split_strings(self._data)
        array = np.empty(len(items), np.object_)
        array[:] = items
        self._array = array = array.reshape(self._dims)
        return array


def received_tensor(name, datatype, root, offset, size, dims):
    """A tensor of a message of the server."""
    tensor = Tensor.__new__(Tensor)
    tensor._name = name
    tensor._datatype = datatype
    if datatype < 13:
        tensor._array = ndarray(dims, DTYPES[datatype], root, offset)
        tensor._data = None
    else:
        tensor._array = None
        tensor._data = root[offset : offset + size] if size else b""
        tensor._dims = dims
    return tensor


def _checked_name(name, array):
    if isinstance(name, (bytes, bytearray)):
        name = bytes(name).decode()
    if not isinstance(name, str) or not isinstance(array, ndarray):
        raise refuse("__init__()", "c_python_backend_utils.Tensor(arg0: str, arg1: numpy.ndarray)", name, array)
    if not name:
        raise TritonModelException("Tensor name cannot be an empty string.")
    return str(name)


def numpy_datatype(dtype):
    """The datatype of numpy's."""
    for kind, code in DATATYPES.items():
        if dtype == kind:
            return code
    if dtype.type is np.bytes_:
        return BYTES
    raise TritonModelException("NumPy dtype is not supported.")


def split_strings(data):
    """The elements of a BYTES tensor: each is its 32-bit length and its bytes."""
    data = bytes(data)
    size = len(data)
    if size >= 4:
        (length,) = U32.unpack_from(data)
        count, rest = divmod(size, 4 + length)
        # All of one length, as tokens and ids often are: one pass in C.
        if rest == 0 and count > 2:
            lengths, items = zip(*Struct("<I" + str(length) + "s").iter_unpack(data))
            if lengths.count(length) == count:
                return list(items)
    items = []
    append = items.append
    unpack = U32.unpack_from
    start = end = 0
    while end + 4 <= size:
        start = end + 4
        end = start + unpack(data, end)[0]
        append(data[start:end])
    if end != size:
        raise TritonModelException(
            "Invalid bytes tensor data: "
            + ("string extends beyond buffer" if end > size else "incomplete length field")
        )
    return items


# The lengths of short elements, as they are on the wire.
LENGTHS = [U32.pack(length) for length in range(256)]


def join_strings(array):
    """The wire form of an array of `bytes`, of other objects (`str(x)` in UTF-8), or of fixed-size strings."""
    items = array.ravel().tolist()
    if array.dtype == np.object_ and not set(map(type, items)) <= {bytes}:
        items = [item if type(item) is bytes else str(item).encode("utf-8") for item in items]
    if len(items) == 1:
        return U32.pack(len(items[0])) + items[0]
    parts = [b""] * (2 * len(items))
    parts[1::2] = items
    try:
        parts[0::2] = map(LENGTHS.__getitem__, map(len, items))
    except IndexError:
        parts[0::2] = map(U32.pack, map(len, items))
    return b"".join(parts)
