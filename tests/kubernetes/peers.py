"""Clients of a server in a cluster: REST over HTTP/1.1, HTTP/2 as Knative's proxy speaks it, gRPC, and their requests."""

import http.client
import json
import pathlib
import socket
import struct

import h2.config
import h2.connection
import h2.events
import h2.exceptions

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
DIGIT = (ROOT / "examples/models/digits/request.json").read_bytes()
#: The answer of the model to that scan.
SEVEN = "seven"
#: The same without labels, which only a model with a configuration has.
PLAIN_DIGIT = json.dumps({"inputs": json.loads(DIGIT)["inputs"]}).encode()


def ask(port, method, path, body=None, headers=None, timeout=10):
    """One request over HTTP/1.1: status and body."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=timeout)
    try:
        connection.request(method, path, body, headers or {})
        reply = connection.getresponse()
        return reply.status, reply.read()
    finally:
        connection.close()


def digit_of(body):
    """The label or the number of the first output that is most likely."""
    data = json.loads(body)["outputs"][0]["data"]
    if isinstance(data[0], str):
        return data[0].split(":")[-1]
    return {7: SEVEN}.get(max(range(len(data)), key=data.__getitem__), "another")


# -- gRPC's messages, as much of them as is sent here


def varint(number):
    data = bytearray()
    while number > 0x7F:
        data.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes(data + bytes([number]))


def field(number, value):
    value = value.encode() if isinstance(value, str) else value
    return varint(number << 3 | 2) + varint(len(value)) + value


def infer_request(model, tensor, datatype, shape, contents):
    """ModelInferRequest."""
    described = field(1, tensor) + field(2, datatype) + field(3, b"".join(map(varint, shape)))
    return field(1, model) + field(5, described) + field(7, contents)


def digit_request(model):
    pixels = json.loads(DIGIT)["inputs"][0]["data"]
    return infer_request(model, "pixels", "FP32", [1, 64], struct.pack("<64f", *pixels))


def digit_of_response(message):
    """ModelInferResponse: its raw contents are its last field, ten numbers."""
    numbers = struct.unpack("<10f", message[-40:])
    return {7: SEVEN}.get(max(range(10), key=numbers.__getitem__), "another")


INFER = "/inference.GRPCInferenceService/ModelInfer"


class H2c:
    """One connection of HTTP/2 without TLS and without an upgrade. Streams are begun together and then awaited."""

    def __init__(self, port, timeout=10):
        self.socket = socket.create_connection(("127.0.0.1", port), timeout)
        self.socket.settimeout(timeout)
        self.connection = h2.connection.H2Connection(h2.config.H2Configuration(header_encoding="utf-8"))
        self.connection.initiate_connection()
        self.replies, self.port = {}, port

    def begin(self, method, path, body=b"", headers=()):
        stream = self.connection.get_next_available_stream_id()
        pseudo = [(":method", method), (":scheme", "http"), (":authority", f"localhost:{self.port}"), (":path", path)]
        self.connection.send_headers(stream, [*pseudo, *headers], end_stream=not body)
        if body:
            self.connection.send_data(stream, body, end_stream=True)
        self.replies[stream] = {"head": {}, "body": b"", "trailers": {}, "is_over": False}
        return stream

    def begin_grpc(self, path, message):
        headers = [("content-type", "application/grpc"), ("te", "trailers")]
        return self.begin("POST", path, b"\0" + struct.pack(">I", len(message)) + message, headers)

    def finish(self, stream):
        """The reply of a stream: its head, body and trailers."""
        self.socket.sendall(self.connection.data_to_send())
        while not self.replies[stream]["is_over"]:
            data = self.socket.recv(65536)
            if not data:
                raise ConnectionError("closed")
            for event in self.connection.receive_data(data):
                reply = self.replies.get(getattr(event, "stream_id", None))
                if isinstance(event, h2.events.ResponseReceived):
                    reply["head"] = dict(event.headers)
                elif isinstance(event, h2.events.TrailersReceived):
                    reply["trailers"] = dict(event.headers)
                elif isinstance(event, h2.events.DataReceived):
                    reply["body"] += event.data
                    self.connection.acknowledge_received_data(event.flow_controlled_length, event.stream_id)
                elif isinstance(event, (h2.events.StreamEnded, h2.events.StreamReset)):
                    reply["is_over"] = True
            self.socket.sendall(self.connection.data_to_send())
        return self.replies.pop(stream)

    def close(self):
        self.socket.close()


def detected_protocol(port, path, timeout=1):
    """The probe of Knative's queue-proxy for an unknown protocol: GET over h2c, and over HTTP/1.1 unless that gives 200 to 399.
    Returns 2, 1 or 0 for neither."""
    headers = [("user-agent", "kube-probe/1.37")]
    try:
        connection = H2c(port, timeout)
        try:
            if 200 <= int(connection.finish(connection.begin("GET", path, headers=headers))["head"][":status"]) < 400:
                return 2
        finally:
            connection.close()
    except (OSError, KeyError, ValueError, h2.exceptions.ProtocolError):
        pass
    try:
        return 1 if 200 <= ask(port, "GET", path, headers=dict(headers), timeout=timeout)[0] < 400 else 0
    except (OSError, http.client.HTTPException):
        return 0
