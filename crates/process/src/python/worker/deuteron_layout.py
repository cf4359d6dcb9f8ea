"""The requests of an EXECUTE message.

The requests of a model are nearly always of one form: the same inputs of the same ranks, the same wanted outputs. So the
form is worked out once (`RequestLayout`), and after that a request is one call of `struct` and a comparison of what must
not differ. Everything else waits until the model asks for it.
"""

from struct import Struct

from deuteron_channel import U16, U32
from deuteron_request import InferenceRequest, details_end
from deuteron_tensor import DTYPES

# Forms that are remembered; with more of them (by ranks, by inputs that are left out) it begins again.
LAYOUTS_MAX = 256

TENSOR_HEAD = Struct("<HBB")
NUMBER = Struct("<Q")


class RequestLayout:
    """Layout of all requests of one form.

    A request is unpacked into a row: its number, `prefix` (that it has no details, and what it wants), then for each input
    offset, size and dimensions, and between two inputs the index, datatype and rank of the next.
    """

    # `struct` is that of a whole request without details, `rest` that of what follows `has_details` or the details,
    # which begins with `wants`. `checks` are the bytes between inputs with their places in the row; `inputs` name,
    # datatypes, begin and end of each.
    __slots__ = ("struct", "rest", "prefix", "wants", "checks", "inputs", "wanted")


class RequestDecoder:
    """Makes requests of messages."""

    def __init__(self, inputs, outputs):
        self.inputs = inputs
        self.outputs = outputs
        self.layouts = {}
        # That of the last request: a good guess for the next.
        self.last = None

    def decode(self, batch, buffer, at, end):
        """All requests from here to the end of the message."""
        (count,) = U32.unpack_from(buffer, at)
        at += 4
        layout = self.last
        if layout is not None and end - at == count * layout.struct.size:
            if count == 1:
                rows = (layout.struct.unpack_from(buffer, at),)
            else:
                rows = layout.struct.iter_unpack(memoryview(buffer)[at:end])
            requests = plain_requests(batch, layout, rows)
            if requests is not None:
                return requests
        requests = []
        for _ in range(count):
            details = None
            rest = at + 9
            if buffer[at + 8]:
                rest = details_end(buffer, rest)
                details = bytes(buffer[at + 9 : rest])
            row = None
            if layout is not None:
                row = self._row_if(layout, buffer, rest, end)
            if row is None:
                layout = self._layout_at(buffer, rest)
                row = layout.rest.unpack_from(buffer, rest)
            request = InferenceRequest.__new__(InferenceRequest)
            request._batch = batch
            request._layout = layout
            request._row = NUMBER.unpack_from(buffer, at) + row
            request._inputs = request._sender = None
            request._details = details
            requests.append(request)
            at = rest + layout.rest.size
        self.last = layout
        return requests

    @staticmethod
    def _row_if(layout, buffer, rest, end):
        """The row behind the details, if it has this layout."""
        if rest + layout.rest.size > end:
            return None
        row = layout.rest.unpack_from(buffer, rest)
        if row[0] != layout.wants:
            return None
        for place, wanted in layout.checks:
            if row[place - 1] != wanted:
                return None
        return row

    def _layout_at(self, buffer, start):
        """The layout of the request whose wanted outputs begin here."""
        (wanted_count,) = U16.unpack_from(buffer, start)
        at = start + 2 + 2 * wanted_count
        (input_count,) = U16.unpack_from(buffer, at)
        at += 2
        fixed = []
        inputs = []
        for _ in range(input_count):
            index, datatype, rank = TENSOR_HEAD.unpack_from(buffer, at)
            at += 4
            fixed.append(bytes(buffer[start:at]))
            inputs.append((index, datatype, rank))
            at += 16 + 8 * rank
            start = at
        if not fixed:
            fixed.append(bytes(buffer[start:at]))
        key = b"".join(fixed)
        layout = self.layouts.get(key)
        if layout is None:
            if len(self.layouts) == LAYOUTS_MAX:
                self.layouts.clear()
            wanted = Struct("<" + str(wanted_count) + "H").unpack_from(key, 2)
            self.layouts[key] = layout = self._new_layout(wanted, inputs, fixed)
        return layout

    def _new_layout(self, wanted, inputs, fixed):
        layout = RequestLayout()
        layout.wants = fixed[0]
        layout.prefix = b"\0" + fixed[0]
        layout.checks = checks = []
        layout.inputs = named = []
        layout.wanted = {self.outputs[index]: index for index in wanted}
        form = ""
        at = 2
        for position, (index, datatype, rank) in enumerate(inputs):
            if position:
                form += "4s"
                checks.append((at, fixed[position]))
                at += 1
            form += "2Q" + (str(rank) + "q" if rank else "")
            named.append((self.inputs[index], datatype, DTYPES.get(datatype), at, at + 2 + rank))
            at += 2 + rank
        # Both make rows with the same places.
        layout.struct = Struct("<Q" + str(len(fixed[0]) + 1) + "s" + form)
        layout.rest = Struct("<" + str(len(fixed[0])) + "s" + form)
        return layout


def plain_requests(batch, layout, rows):
    """Requests without details, if all rows are of this layout."""
    prefix = layout.prefix
    checks = layout.checks
    new = InferenceRequest.__new__
    kind = InferenceRequest
    requests = []
    append = requests.append
    for row in rows:
        if row[1] != prefix:
            return None
        for place, wanted in checks:
            if row[place] != wanted:
                return None
        request = new(kind)
        request._batch = batch
        request._layout = layout
        request._row = row
        request._inputs = request._sender = request._details = None
        append(request)
    return requests
