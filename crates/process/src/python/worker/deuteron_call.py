"""Requests to other models (BLS): `exec`, `async_exec`, and the iterator over the responses of a decoupled call."""

from __future__ import annotations

import _thread
import weakref
from struct import Struct

import c_python_backend_utils as native
import deuteron_channel as channel
from deuteron_channel import U16, U64, frame, read_str32, str16
from deuteron_request import (
    CORRELATION_SIZE_MAX,
    OWN_PLACE,
    PLACE,
    SPAN,
    InferenceResponse,
    InferenceTrace,
    TritonError,
    TritonErrorCode,
    _sequence,
    parameters_json,
    truth,
    whole_number,
)
from deuteron_tensor import RANK_MAX, PlacedMemory, Tensor, TritonModelException, received_tensor, refuse

TENSOR = Struct("<BBQQ")
# With dimensions, and these alone, by their number.
TENSORS = [Struct("<BBQQ" + str(rank) + "q") for rank in range(RANK_MAX + 1)]
DIMS = [Struct("<" + str(rank) + "q") for rank in range(RANK_MAX + 1)]
VERSION = Struct("<q")
CALL_HEAD = Struct("<QQB")
SERVING = "serving"
# Bytes of a response to a decoupled call below which it is copied, so that a consumer that keeps many of them does not
# keep the memory in which they came.
COPIED_SIZE_MAX = 64 * 1024
# Inputs, and requested outputs, that the server takes.
TENSORS_MAX = 1024

SIGNATURE = (
    "c_python_backend_utils.InferenceRequest(request_id: str = '', correlation_id: object = 0, inputs: "
    "List[c_python_backend_utils.Tensor], requested_output_names: List[str], model_name: str, model_version: int = -1, "
    "flags: int = 0, timeout: int = 0, preferred_memory: c_python_backend_utils.PreferredMemory = ..., trace: "
    "c_python_backend_utils.InferenceTrace = ..., parameters: object = None)"
)


class Target:
    """Target of a request: the model, its version, and the wanted outputs."""

    __slots__ = ("model", "version", "outputs", "parent")


def checked_request(
    details, request_id, correlation_id, inputs, requested_output_names, model_name, model_version, flags, timeout,
    preferred_memory, trace, parameters,
):
    """The inputs and the target of a request, whose details are filled in. The arguments are those of the constructor."""
    given = (
        request_id, correlation_id, inputs, requested_output_names, model_name, model_version, flags, timeout,
        preferred_memory, trace, parameters,
    )

    def refusal(*_):
        return refuse("__init__()", SIGNATURE, *(value for value in given if value is not ...))

    # An element of a string tensor is bytes, and Triton's bindings take these for text.
    if isinstance(model_name, bytes):
        model_name = model_name.decode(errors="replace")
    if not isinstance(request_id, str) or not isinstance(model_name, str) or correlation_id is None:
        raise refusal()
    if preferred_memory is not ... and not isinstance(preferred_memory, native.PreferredMemory):
        raise refusal()
    if trace is not ... and not isinstance(trace, InferenceTrace):
        raise refusal()
    what = " for request with id '" + request_id + "' and model name '" + model_name + "' should not be empty."
    inputs = _sequence(inputs, refusal)
    for tensor in inputs:
        if tensor is None:
            raise TritonModelException("Input tensor" + what)
        if not isinstance(tensor, Tensor):
            raise refusal()
    names = _sequence(requested_output_names, refusal)
    for name in names:
        if not isinstance(name, str):
            raise refusal()
        if not name:
            raise TritonModelException("Requested output name" + what)
    target = Target()
    target.model = model_name
    target.outputs = names
    target.version = _number(model_version, -(2**63), 2**63 - 1, refusal)
    target.parent = 0
    details.id = request_id
    if flags.__class__ is not int or flags:
        details.flags = _number(flags, 0, 2**32 - 1, refusal)
    if timeout.__class__ is not int or timeout:
        details.timeout = _number(timeout, 0, 2**64 - 1, refusal)
    if isinstance(correlation_id, str):
        details.correlation = correlation_id
    elif hasattr(correlation_id, "__index__"):
        # An `int`, or an integer of numpy, for which Triton has the error below.
        details.correlation = _number(correlation_id, 0, 2**64 - 1, refusal)
    else:
        raise TritonModelException("Correlation ID must be integer or string")
    if parameters is not None:
        details.parameters = parameters_json(parameters)
    if trace is not ...:
        details.context = trace._context
        target.parent = trace._request
    return inputs, target


def _number(value, least, most, refusal):
    if value.__class__ is int and least <= value <= most:
        return value
    try:
        return whole_number(value, least, most, "", "")
    except TypeError:
        raise refusal() from None


def _parent(request):
    """The request on whose behalf this call is made, if that is beyond doubt, and whether it stands for its batch."""
    parent = request._target.parent
    return (parent, False) if parent else channel.process.parent()


def _call_frame(request, number, is_decoupled):
    """The message, with the inputs copied into a span."""
    target = getattr(request, "_target", None)
    if target is None:
        # One that arrived: it is for this model, which is busy with it.
        raise ValueError("a request that arrived cannot be sent on: make a new InferenceRequest")
    details = request._details
    inputs = request._inputs
    if len(inputs) > TENSORS_MAX or len(target.outputs) > TENSORS_MAX:
        raise ValueError("a request has at most " + str(TENSORS_MAX) + " inputs and requested outputs")
    if isinstance(details.correlation, str) and len(details.correlation.encode("utf-8", "replace")) > CORRELATION_SIZE_MAX:
        raise ValueError("a correlation id has at most " + str(CORRELATION_SIZE_MAX) + " bytes")
    copies, parts, offset = [], [], 0
    for tensor in inputs:
        source = tensor._data
        if source is None:
            source = tensor._array
            dims, size = source.shape, source.nbytes
        else:
            dims, size = tensor._dims, len(source)
        rank = len(dims)
        if rank > RANK_MAX:
            raise ValueError("input '" + tensor._name + "' has more than " + str(RANK_MAX) + " dimensions")
        parts.append(str16(tensor._name))
        if source.__class__ is PlacedMemory:
            copies.append((0, 0, source))
            parts.append(TENSORS[rank].pack(tensor._datatype | OWN_PLACE, rank, source.offset, size, *dims))
            parts.append(PLACE.pack(source.slot, source.region))
            continue
        if size:
            copies.append((offset, size, source))
        parts.append(TENSORS[rank].pack(tensor._datatype, rank, offset, size, *dims))
        offset += (size + 63) & -64
    parent, is_of_batch = _parent(request)
    return frame(
        channel.BLS_CALL,
        CALL_HEAD.pack(number, parent, is_decoupled + 2 * is_of_batch),
        str16(target.model),
        VERSION.pack(target.version),
        details.encode(),
        channel.process.write_span(copies, offset),
        U16.pack(len(target.outputs)),
        *map(str16, target.outputs),
        U16.pack(len(inputs)),
        *parts,
    )


def decode_reply(body, may_copy):
    """A BLS_REPLY: the response, and whether it is the last."""
    is_last = bool(body[8] & 1)
    slot, region, offset, size = SPAN.unpack_from(body, 9)
    at = 9 + SPAN.size
    requests = channel.process.requests
    root = weak = None
    if size:
        root = requests.root(region, offset, size)
        weak = weakref.ref(root)
        if may_copy and size <= COPIED_SIZE_MAX:
            root = root.copy()
    kind = body[at]
    at += 1
    response = InferenceResponse()
    if kind == 2:
        code = TritonErrorCode(body[at]) if body[at] < 8 else TritonError.INTERNAL
        text, _ = read_str32(body, at + 1)
        response._error = TritonError(text, code)
    elif kind != 0:
        response._parameters, at = read_str32(body, at)
        (count,) = U16.unpack_from(body, at)
        at += 2
        for _ in range(count):
            (name_size,) = U16.unpack_from(body, at)
            at += 2
            name = bytes(body[at : at + name_size]).decode()
            at += name_size
            datatype, rank, tensor_offset, tensor_size = TENSOR.unpack_from(body, at)
            at += TENSOR.size
            dims = DIMS[rank].unpack_from(body, at)
            at += 8 * rank
            response._outputs.append(received_tensor(name, datatype, root, tensor_offset, tensor_size, dims))
    if size:
        root = None
        if requests.keep(slot, weak):
            requests.release(slot)
    return response, is_last


class ModelCall(channel.Call):
    """A request that runs on another model."""

    __slots__ = ("number", "is_decoupled", "is_finished", "is_abandoned", "notify")

    def __init__(self, is_decoupled):
        super().__init__()
        self.number = 0
        self.is_decoupled = is_decoupled
        # True if the last response was taken.
        self.is_finished = False
        # True if responses are no longer taken.
        self.is_abandoned = False
        # Called in the reader's thread when the first response has come.
        self.notify = None

    def handle(self, kind, body):
        try:
            response, is_last = decode_reply(body, self.is_decoupled)
        except Exception as error:
            # A waiting caller must get something.
            response, is_last = failed(error), bool(body[8] & 1)
        self.replies.append((response, is_last))
        return is_last

    def handle_delivered(self):
        if self.is_abandoned:
            self.drain()
        notify = self.notify
        if notify is not None:
            self.notify = None
            notify()

    def count_taken(self, is_last):
        """Lets the server send another response for the one that was taken."""
        if is_last:
            self.is_finished = True
        elif self.is_decoupled:
            channel.process.aux.writer.send_last_word(frame(channel.BLS_READ, U64.pack(self.number)))

    def drain(self):
        """Drops responses that are no longer taken."""
        while True:
            try:
                _, is_last = self.replies.popleft()
            except IndexError:
                return
            self.count_taken(is_last)


def failed(error):
    """The response to a call that could not be made or read."""
    return InferenceResponse(error=TritonError(str(error)))


def _open(request, decoupled, function):
    """Sends a request. Returns its call, in which an error may be waiting already."""
    is_decoupled = truth(decoupled, function, "(self, decoupled: bool = False) -> object")
    process = channel.process
    if process.stage != SERVING:
        raise TritonModelException("BLS is only supported during the 'execute' function.")
    call = ModelCall(is_decoupled)
    number = call.number = process.aux.open_call(call)
    try:
        process.aux.writer.send(_call_frame(request, number, call.is_decoupled))
    except (TritonModelException, ValueError, channel.ServerGone) as error:
        process.aux.close_call(number)
        call.replies.append((failed(error), True))
    return call


def execute(request, decoupled):
    """`InferenceRequest.exec`."""
    call = _open(request, decoupled, "exec()")
    if call.is_decoupled:
        return ResponseIterator._of(call)
    response, is_last = channel.process.aux.wait(call)
    call.count_taken(is_last)
    return response


def execute_later(request, decoupled):
    """`InferenceRequest.async_exec`. A future of the running loop, which the reader of the aux socket completes."""
    import asyncio

    loop = asyncio.get_running_loop()
    future = loop.create_future()
    call = ModelCall(False)

    def take():
        # In the loop's thread.
        if future.cancelled():
            call.is_abandoned = True
            call.drain()
        elif not future.done():
            if call.is_decoupled:
                future.set_result(ResponseIterator._of(call))
            else:
                response, is_last = call.replies.popleft()
                call.count_taken(is_last)
                future.set_result(response)

    def notify():
        try:
            loop.call_soon_threadsafe(take)
        except RuntimeError:
            # The loop is closed: no caller waits.
            call.is_abandoned = True
            call.drain()

    process = channel.process
    process.aux.start_reader()
    call = _open(request, decoupled, "async_exec()")
    call.notify = notify
    if call.replies and call.notify is not None:
        # It came before `notify` was set.
        call.notify = None
        take()
    future.add_done_callback(lambda done: cancel_call(call) if done.cancelled() else None)
    return future


def cancel_call(call):
    """Tells the server that the responses are no longer needed."""
    if not call.is_finished:
        channel.process.aux.writer.send_last_word(frame(channel.BLS_CANCEL, U64.pack(call.number)))


class ResponseIterator:
    """The responses to a decoupled call. Once it is at its end it can be iterated again."""

    __module__ = "c_python_backend_utils"
    __slots__ = ("_call", "_responses", "_index", "_lock", "_is_cancelled", "__weakref__")

    def __init__(self):
        raise TypeError("c_python_backend_utils.ResponseIterator: No constructor defined!")

    @classmethod
    def _of(cls, call):
        iterator = cls.__new__(cls)
        iterator._call = call
        iterator._responses = []
        iterator._index = 0
        iterator._lock = _thread.allocate_lock()
        iterator._is_cancelled = False
        return iterator

    def __iter__(self) -> ResponseIterator:
        if self._call.is_finished and self._index >= len(self._responses):
            self._index = 0
        return self

    def __next__(self) -> InferenceResponse:
        call = self._call
        with self._lock:
            if call.is_finished:
                if self._index >= len(self._responses):
                    raise StopIteration("Iteration is done for the responses.")
                self._index += 1
                return self._responses[self._index - 1]
            response, is_last = channel.process.aux.wait(call)
            call.count_taken(is_last)
            self._responses.append(response)
            if is_last:
                self._index = len(self._responses)
            return response

    def cancel(self) -> None:
        """Asks the server to end the call; the responses end with an error or early."""
        if not self._call.is_finished and not self._is_cancelled:
            self._is_cancelled = True
            cancel_call(self._call)

    def __del__(self):
        try:
            call = self._call
        except AttributeError:
            return
        if not call.is_finished:
            # The reader takes the rest, so that the other model can end.
            call.is_abandoned = True
            call.drain()
            if not call.is_finished:
                channel.process.aux.start_reader()
