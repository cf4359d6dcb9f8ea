"""Requests, responses and response senders."""

from __future__ import annotations

import _thread
import enum
import json
from struct import Struct

from numpy import bool_, integer, ndarray

import deuteron_channel as channel
from deuteron_channel import U32, U64, frame, str32
from deuteron_tensor import RANK_MAX, PlacedMemory, Tensor, TritonModelException, received_tensor, refuse

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Dict, List, Optional, Sequence, Set, Union

new_tensor = Tensor.__new__

# Flags of a response, and of a request that leaves `execute`.
COMPLETE_FINAL = 1
RELEASE_ALL, RELEASE_RESCHEDULE = 1, 2
# Flags of SEND.
SEND_FINAL, SEND_DROPPED = 1, 2

# Kinds of responses.
NO_RESPONSE = b"\0"
RESCHEDULED = Struct("<BIH").pack(3, 0, 0)
NO_SPAN = bytes(22)
SPAN = Struct("<IHQQ")
SEND_HEAD = Struct("<QBIHQQ")
DETAILS_REST = Struct("<IQQI")
# Details that say nothing, on the wire.
EMPTY_DETAILS = bytes(33)

# Of an output in a place of its own: the flag of its datatype, then its offset is that in the region, and what follows its
# dimensions.
OWN_PLACE = 0x80
PLACE = Struct("<IH")

# A response that has one output, and what follows the first of several, by the number of dimensions.
FIRST_HEAD = Struct("<BIH").pack(1, 0, 1)
FIRST_OUTPUT = [Struct("<BIHHBBQQ" + str(rank) + "q") for rank in range(RANK_MAX + 1)]
OUTPUT = [Struct("<HBBQQ" + str(rank) + "q") for rank in range(RANK_MAX + 1)]

# The server's limits for a response.
PARAMETERS_MAX = 256
CORRELATION_SIZE_MAX = 128


class TritonErrorCode(enum.IntEnum):
    """The codes of errors, as `TRITONSERVER_Error_Code`."""

    UNKNOWN = 0
    INTERNAL = 1
    NOT_FOUND = 2
    INVALID_ARG = 3
    UNAVAILABLE = 4
    UNSUPPORTED = 5
    ALREADY_EXISTS = 6
    CANCELLED = 7

    def __str__(self):
        return "__ErrorCode." + self.name


TritonErrorCode.__name__ = TritonErrorCode.__qualname__ = "__ErrorCode"


class TritonError:
    """Why a request failed. Not an exception: it is part of an `InferenceResponse`."""

    __module__ = "c_python_backend_utils"
    __slots__ = ("_message", "_code", "__weakref__")

    UNKNOWN = TritonErrorCode.UNKNOWN
    INTERNAL = TritonErrorCode.INTERNAL
    NOT_FOUND = TritonErrorCode.NOT_FOUND
    INVALID_ARG = TritonErrorCode.INVALID_ARG
    UNAVAILABLE = TritonErrorCode.UNAVAILABLE
    UNSUPPORTED = TritonErrorCode.UNSUPPORTED
    ALREADY_EXISTS = TritonErrorCode.ALREADY_EXISTS
    CANCELLED = TritonErrorCode.CANCELLED

    def __init__(self, message: str, code: TritonErrorCode = TritonErrorCode.INTERNAL) -> None:
        if not isinstance(message, (str, bytes)) or not isinstance(code, TritonErrorCode):
            raise refuse(
                "__init__()",
                "c_python_backend_utils.TritonError(message: str, code: c_python_backend_utils.TritonError.__ErrorCode"
                " = <__ErrorCode.INTERNAL: 1>)",
                message,
                code,
            )
        self._message = message.decode() if isinstance(message, bytes) else message
        self._code = code

    def message(self) -> str:
        """The text."""
        return self._message

    def code(self) -> TritonErrorCode:
        """The code."""
        return self._code


class InferenceTrace:
    """The trace of a request."""

    __module__ = "c_python_backend_utils"
    __slots__ = ("_context", "_request")

    def __init__(self) -> None:
        self._context = ""
        self._request = 0

    def get_context(self) -> Optional[str]:
        """The context (JSON of the W3C headers), or None if the request is not traced."""
        return self._context or None


class InferenceResponse:
    """The answer to one request: outputs, or an error."""

    __module__ = "c_python_backend_utils"
    __slots__ = ("_outputs", "_error", "_parameters", "__weakref__")

    def __init__(
        self,
        output_tensors: Sequence[Tensor] = (),
        error: Optional[TritonError] = None,
        parameters: Optional[Dict[str, Union[bool, int, str]]] = None,
    ) -> None:
        if output_tensors.__class__ is not list and not isinstance(output_tensors, (list, tuple)):
            output_tensors = _sequence(output_tensors, self._refuse, output_tensors, error, parameters)
        self._outputs = outputs = [*output_tensors]
        for tensor in outputs:
            if tensor.__class__ is not Tensor:
                if tensor is None:
                    raise TritonModelException("Output tensor for inference response should not be empty.")
                if not isinstance(tensor, Tensor):
                    raise self._refuse(output_tensors, error, parameters)
        if error is not None and not isinstance(error, TritonError):
            raise self._refuse(output_tensors, error, parameters)
        self._error = error
        self._parameters = None if parameters is None else parameters_json(parameters)

    @staticmethod
    def _refuse(*given):
        return refuse(
            "__init__()",
            "c_python_backend_utils.InferenceResponse(output_tensors: List[c_python_backend_utils.Tensor] = [], error: "
            "c_python_backend_utils.TritonError = None, parameters: object = None)",
            *given,
        )

    def output_tensors(self) -> List[Tensor]:
        """The outputs."""
        return [*self._outputs]

    def has_error(self) -> bool:
        """True if the request failed."""
        return self._error is not None

    def error(self) -> Optional[TritonError]:
        """Why it failed."""
        return self._error

    def parameters(self) -> str:
        """The parameters, as JSON text."""
        return self._parameters or "{}"


def parameters_json(parameters):
    """The JSON text of parameters, which are flat: names to `bool`, `int` or `str`, or to numpy's of these."""
    if not isinstance(parameters, dict):
        # As Triton's binding names a dict.
        raise TritonModelException("Expect N8pybind114dictE, got " + str(type(parameters)))
    plain = {}
    for name, value in parameters.items():
        if isinstance(value, (bool_, integer)):
            value = value.item()
        plain[name] = value
        if not isinstance(name, str):
            raise TritonModelException("Expect parameters keys to have type str, found type " + str(type(name)))
        if not isinstance(value, (bool, int, str)):
            raise TritonModelException(
                "Expect parameters values to have type bool/int/str, found type " + str(type(value))
            )
        # Values that the server would have to refuse afterwards.
        if isinstance(value, int) and not -(2**63) <= value < 2**63:
            raise TritonModelException("Expect parameters values of type int to fit into 64 bits, found " + str(value))
    if len(parameters) > PARAMETERS_MAX:
        raise TritonModelException(
            "Expect at most " + str(PARAMETERS_MAX) + " parameters, found " + str(len(parameters))
        )
    return json.dumps(plain)


def wire_json(text):
    """Parameters on the wire: as they are, but for halves of surrogate pairs, which JSON of others does not have."""
    if text is None or text == "{}":
        return bytes(4)
    if "\\ud" in text:
        text = json.dumps(json.loads(text), ensure_ascii=False)
    data = text.encode("utf-8", "replace")
    return U32.pack(len(data)) + data


def encode_response(response, wanted, copies, offset):
    """One response: its bytes, and where the next output may begin. `copies` gets what has to be copied, and where to.

    Only outputs that the request wants are in it.
    """
    if response._error is not None:
        error = response._error
        return b"\2" + bytes((error._code,)) + str32(error._message), offset
    parts = []
    count = 0
    parameters = response._parameters
    for tensor in response._outputs:
        index = wanted.get(tensor._name)
        if index is None:
            continue
        source = tensor._data
        if source is None:
            source = tensor._array
            dims = source.shape
            size = source.nbytes
        else:
            dims = tensor._dims
            size = len(source)
        rank = len(dims)
        if rank > RANK_MAX:
            raise TritonModelException(
                "Output '" + tensor._name + "' has " + str(rank) + " dimensions, more than " + str(RANK_MAX)
            )
        if source.__class__ is PlacedMemory:
            copies.append((0, 0, source))
            head = b"" if count or parameters is not None else FIRST_HEAD
            place = OUTPUT[rank].pack(index, tensor._datatype | OWN_PLACE, rank, source.offset, size, *dims)
            parts.append(head + place + PLACE.pack(source.slot, source.region))
            count += 1
            continue
        if size:
            copies.append((offset, size, source))
        if count == 0 and parameters is None:
            parts.append(FIRST_OUTPUT[rank].pack(1, 0, 1, index, tensor._datatype, rank, offset, size, *dims))
        else:
            parts.append(OUTPUT[rank].pack(index, tensor._datatype, rank, offset, size, *dims))
        count += 1
        offset += (size + 63) & -64
    if count == 1 and parameters is None:
        return parts[0], offset
    return _several_outputs(parts, count, parameters), offset


def _several_outputs(parts, count, parameters):
    body = b"".join(parts)
    if parameters is None and count:
        # The head of the first output said that there is one.
        return body[:5] + count.to_bytes(2, "little") + body[7:]
    return b"\1" + wire_json(parameters) + count.to_bytes(2, "little") + body


class RequestDetails:
    """Everything about a request but its tensors."""

    __slots__ = ("id", "correlation", "flags", "timeout", "priority", "parameters", "context")

    def __init__(self):
        self.id = ""
        self.correlation = 0
        self.flags = 0
        self.timeout = 0
        self.priority = 0
        self.parameters = None
        self.context = ""

    @classmethod
    def decode(cls, body):
        """From a message."""
        details = cls()
        details.id, at = channel.read_str32(body, 0)
        kind = body[at]
        at += 1
        if kind == 1:
            (details.correlation,) = U64.unpack_from(body, at)
            at += 8
        elif kind == 2:
            details.correlation, at = channel.read_str32(body, at)
        details.flags, details.timeout, details.priority, _ = DETAILS_REST.unpack_from(body, at)
        parameters, at = channel.read_str32(body, at + 20)
        details.parameters = parameters or None
        details.context, _ = channel.read_str32(body, at)
        return details

    def encode(self):
        """For a message."""
        correlation = self.correlation
        if not (self.id or correlation or self.flags or self.timeout or self.parameters or self.context):
            return EMPTY_DETAILS
        if isinstance(correlation, str):
            wire = b"\2" + str32(correlation)
        elif correlation:
            wire = b"\1" + U64.pack(correlation)
        else:
            wire = b"\0"
        flags = U32.pack(self.flags) + U64.pack(self.timeout) + U64.pack(self.priority)
        return str32(self.id) + wire + flags + wire_json(self.parameters) + str32(self.context)


def details_end(buffer, at):
    """The end of the details that begin here."""
    at += 4 + U32.unpack_from(buffer, at)[0]
    kind = buffer[at]
    at += 1
    if kind:
        at += 8 if kind == 1 else 4 + U32.unpack_from(buffer, at)[0]
    at += 24 + U32.unpack_from(buffer, at + 20)[0]
    return at + 4 + U32.unpack_from(buffer, at)[0]


NO_DETAILS = RequestDetails()


class RequestBatch:
    """State of the requests of one batch."""

    __slots__ = ("root", "is_returned", "release")

    def __init__(self, root):
        self.root = root
        # True if `execute` has returned: a request that has no sender by then has been answered.
        self.is_returned = False
        # Release flags by the id of the request; None if no request has any.
        self.release = None


class InferenceRequest:
    """A request: one that arrived, or one to another model."""

    __module__ = "c_python_backend_utils"
    # One that arrived: its batch, its layout, and the numbers in its message, from which the inputs are made when they
    # are first asked for. One to another model has no layout but a target.
    __slots__ = ("_batch", "_layout", "_row", "_inputs", "_sender", "_details", "_target", "__weakref__")

    def __init__(
        self,
        request_id: str = "",
        correlation_id: Union[int, str] = 0,
        inputs: Sequence[Tensor] = ...,
        requested_output_names: Sequence[str] = ...,
        model_name: str = ...,
        model_version: int = -1,
        flags: int = 0,
        timeout: int = 0,
        preferred_memory: Any = ...,
        trace: InferenceTrace = ...,
        parameters: Optional[Dict[str, Union[bool, int, str]]] = None,
    ) -> None:
        import deuteron_call

        self._batch = self._layout = self._row = self._sender = None
        self._details = details = RequestDetails()
        self._inputs, self._target = deuteron_call.checked_request(
            details, request_id, correlation_id, inputs, requested_output_names, model_name, model_version, flags,
            timeout, preferred_memory, trace, parameters,
        )

    def inputs(self) -> List[Tensor]:
        """The inputs; those that the client left out are not among them."""
        inputs = self._inputs
        return [*(inputs if inputs is not None else self._open_inputs())]

    def _open_inputs(self):
        row = self._row
        root = self._batch.root
        self._inputs = inputs = []
        for name, datatype, dtype, at, end in self._layout.inputs:
            if dtype is None:
                tensor = received_tensor(name, datatype, root, row[at], row[at + 1], row[at + 2 : end])
            else:
                # The same, without the call: most requests have just this.
                tensor = new_tensor(Tensor)
                tensor._name = name
                tensor._datatype = datatype
                tensor._array = ndarray(row[at + 2 : end], dtype, root, row[at])
                tensor._data = None
            inputs.append(tensor)
        return inputs

    def _known(self):
        details = self._details
        if type(details) is bytes:
            self._details = details = RequestDetails.decode(details)
        elif details is None:
            details = NO_DETAILS
        return details

    def request_id(self) -> str:
        """The id that the client gave; empty if none."""
        return self._known().id

    def correlation_id(self) -> Union[int, str]:
        """The sequence that it belongs to; 0 if none."""
        return self._known().correlation

    def flags(self) -> int:
        """`TRITONSERVER_REQUEST_FLAG_SEQUENCE_START` and `…_END`."""
        return self._known().flags

    def set_flags(self, flags: int, /) -> None:
        """Sets the flags."""
        if self._details is None:
            self._details = RequestDetails()
        self._known().flags = whole_number(flags, 0, 2**32 - 1, "set_flags()", "(self, arg0: int) -> None")

    def timeout(self) -> int:
        """In microseconds; 0 if none."""
        return self._known().timeout

    def parameters(self) -> str:
        """The parameters, as JSON text."""
        return self._known().parameters or "{}"

    def trace(self) -> InferenceTrace:
        """The trace."""
        trace = InferenceTrace()
        trace._context = self._known().context
        trace._request = 0 if self._row is None else self._row[0]
        return trace

    def requested_output_names(self) -> Set[str]:
        """The names of the wanted outputs."""
        return set(self._target.outputs if self._layout is None else self._layout.wanted)

    def is_cancelled(self) -> bool:
        """True if the client no longer needs an answer. Asks the server."""
        if self._layout is None:
            return False
        return self.get_response_sender().is_cancelled()

    def get_response_sender(self) -> InferenceResponseSender:
        """The sender of responses before, or after, `execute` returns."""
        sender = self._sender
        if sender is None:
            sender = InferenceResponseSender.__new__(InferenceResponseSender)
            if self._layout is None:
                sender._state = SenderState(0, {}, True)
                sender._state.is_orphan = True
            else:
                sender._state = SenderState(self._row[0], self._layout.wanted, self._batch.is_returned)
            self._sender = sender
        return sender

    def set_release_flags(self, flags: int) -> None:
        """`TRITONSERVER_REQUEST_RELEASE_RESCHEDULE` puts the request into the queue again when `execute` returns."""
        flags = whole_number(flags, 0, 2**32 - 1, "set_release_flags()", "(self, flags: int) -> None")
        batch = self._batch
        if batch is not None:
            if batch.release is None:
                batch.release = {}
            batch.release[self._row[0]] = flags

    def exec(self, decoupled: bool = False):
        """Runs the request on the model that it names. Returns the response, or with `decoupled` an iterator over all."""
        import deuteron_call

        return deuteron_call.execute(self, decoupled)

    def async_exec(self, decoupled: bool = False):
        """As `exec`, for coroutines: returns a future."""
        import deuteron_call

        return deuteron_call.execute_later(self, decoupled)


def whole_number(value, least, most, function, signature):
    """An argument that has to be an integer in this range."""
    try:
        number = value.__index__()
    except (AttributeError, TypeError):
        number = None
    if number is None or not least <= number <= most:
        raise refuse(function, signature, value)
    return number


def truth(value, function, signature):
    """An argument that has to be a truth value, or a number in its place."""
    if value is None or not hasattr(value, "__bool__"):
        raise refuse(function, signature, value)
    return bool(value)


def _sequence(value, refusal, *given):
    """The items of a list-like argument, which may not be None or text."""
    if value.__class__ is list:
        return value[:]
    if value is None or value is ... or isinstance(value, (str, bytes, dict)) or not hasattr(value, "__iter__"):
        raise refusal(*given)
    return list(value)


class SenderState:
    """Progress of the responses to one request. It outlives the sender."""

    __slots__ = (
        "request", "wanted", "lock", "sent", "is_closed", "is_orphan", "is_cancelled", "is_returned", "is_dropped",
        "drop", "failure",
    )

    def __init__(self, request, wanted, is_closed):
        self.request = request
        self.wanted = wanted
        self.lock = _thread.allocate_lock()
        # One that is closed from the start was answered by the return of `execute`.
        self.sent = int(is_closed)
        self.is_closed = is_closed
        # The sender of a request to another model, which nothing can be sent to.
        self.is_orphan = False
        self.is_cancelled = False
        # True if the answer to the batch left this request to its sender.
        self.is_returned = False
        self.is_dropped = False
        # The caller that pops it reports that the sender is gone: its finalizer, or the end of `execute`.
        self.drop = [True]
        # Why the coroutine that had the request failed.
        self.failure = None

    def count(self, has_response, flags):
        """Checks that a response may be sent, and counts it."""
        if self.is_orphan:
            raise TritonModelException(
                "Unable to send response. Response sender has no reference to the decoupled state of the model."
            )
        with self.lock:
            if not channel.process.is_decoupled:
                if has_response and self.sent > 0:
                    raise TritonModelException(
                        "Unable to send response. Non-decoupled model cannot send more than one response."
                    )
                if not has_response and flags == COMPLETE_FINAL and self.sent == 0:
                    raise TritonModelException(
                        "Unable to send response. Non-decoupled model cannot send complete final before sending a "
                        "response."
                    )
            if self.is_closed:
                raise TritonModelException("Unable to send response. Response sender has been closed.")
            if flags == COMPLETE_FINAL:
                self.is_closed = True
            self.sent += 1

    def take_drop(self):
        """True if the caller must report that the sender is gone."""
        try:
            return self.drop.pop()
        except IndexError:
            return False

    def dropped_frame(self):
        """The frame that tells the server that the sender is gone."""
        if self.failure is not None and not self.is_closed:
            response = b"\2" + bytes((TritonError.INTERNAL,)) + str32(self.failure)
            return frame(channel.SEND, U64.pack(self.request), bytes((SEND_FINAL,)), NO_SPAN, response)
        return frame(channel.SEND, U64.pack(self.request), bytes((SEND_DROPPED,)), NO_SPAN, NO_RESPONSE)


class InferenceResponseSender:
    """Sends responses to one request, from any thread."""

    __module__ = "c_python_backend_utils"
    __slots__ = ("_state", "__weakref__")

    def __init__(self):
        raise TypeError("c_python_backend_utils.InferenceResponseSender: No constructor defined!")

    def send(self, response: Optional[InferenceResponse] = None, flags: int = 0) -> None:
        """Sends a response. With the flag `TRITONSERVER_RESPONSE_COMPLETE_FINAL` it is the last, or none follows."""
        signature = "(self, response: c_python_backend_utils.InferenceResponse = None, flags: int = 0) -> None"
        flags = whole_number(flags, 0, 2**32 - 1, "send()", signature)
        if response is not None and not isinstance(response, InferenceResponse):
            raise refuse("send()", signature, response, flags)
        if flags not in (0, COMPLETE_FINAL):
            raise TritonModelException("Unable to send response. Unsupported flag provided.")
        if flags == 0 and response is None:
            raise TritonModelException(
                "Inference Response object must be provided when the response flags is set to zero."
            )
        state = self._state
        state.count(response is not None, flags)
        process = channel.process
        span, body = NO_SPAN, NO_RESPONSE
        if response is not None:
            copies = []
            body, size = encode_response(response, state.wanted, copies, 0)
            span = process.write_span(copies, size)
        process.main.send(frame(channel.SEND, U64.pack(state.request), bytes((flags,)), span, body))

    def is_cancelled(self) -> bool:
        """True if the client no longer needs an answer. Asks the server, until the answer is yes."""
        state = self._state
        if not state.is_cancelled and not state.is_orphan:
            is_known, value = channel.process.aux.ask(channel.IS_CANCELLED, U64.pack(state.request))
            state.is_cancelled = bool(is_known and value)
        return state.is_cancelled

    def __del__(self):
        try:
            state = self._state
        except AttributeError:
            return
        state.is_dropped = True
        if state.is_returned and not state.is_closed and state.take_drop():
            channel.process.main.send_last_word(state.dropped_frame())
