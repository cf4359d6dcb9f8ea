"""Draws the diagrams of the pages: python3 docs/figures/diagrams.py"""

from svg import Drawing


def request_path():
    drawing = Drawing(900, 348, "The path of a request: socket, shard, parser, queue, worker, engine, and back")
    drawing.area(16, 16, 436, 316, "Shard: one thread on one core")
    drawing.area(468, 16, 190, 316, "Model queue")
    drawing.area(674, 16, 210, 316, "Worker: one per instance")
    drawing.box(32, 62, 96, 60, "Socket", "io_uring")
    drawing.box(156, 62, 124, 60, "Parser", "HTTP/1.1, HTTP/2")
    drawing.box(308, 62, 128, 60, "Check, decode", "against the model")
    drawing.box(484, 62, 158, 60, "Ring of the shard", "bounded, no lock")
    drawing.box(484, 178, 158, 60, "Batcher", "order, delay, size")
    drawing.box(690, 178, 178, 60, "Gather", "the inputs of the batch")
    drawing.box(690, 256, 178, 60, "Engine", "runs the batch")
    drawing.box(32, 256, 96, 60, "Socket", "reply")
    drawing.box(156, 256, 124, 60, "Encode", "JSON, binary, gRPC")
    drawing.box(308, 256, 128, 60, "Completions", "wake the shard")
    drawing.box(308, 160, 128, 60, "Run inline", "a model of a few µs")
    for x in (128, 280):
        drawing.arrow((x, 92), (x + 28, 92))
        drawing.arrow((x + 28, 286), (x, 286))
    drawing.arrow((436, 92), (484, 92))
    drawing.arrow((563, 122), (563, 178))
    drawing.arrow((642, 208), (690, 208))
    drawing.arrow((779, 238), (779, 256))
    drawing.arrow((690, 286), (436, 286))
    drawing.text(563, 280, "answers", "small")
    drawing.arrow((372, 122), (372, 160), kind="line dashed")
    drawing.arrow((308, 190), (218, 190), (218, 256), kind="line dashed")
    drawing.text(228, 182, "or: no queue", "small")
    drawing.write("request-path.svg")


def gantt(drawing, x, y, scale, name, requests, batches):
    """Requests as (arrival, start, end): they wait, then run. Batches as (start, end, text)."""
    drawing.text(x, y, name, "strong", "start")
    left, top, step = x + 84, y + 16, 22
    for index, (arrival, start, end) in enumerate(requests):
        at = top + index * step
        drawing.text(x, at + 12, f"request {index + 1}", "small", "start")
        if start > arrival:
            drawing.rect("wait", left + arrival * scale, at + 3, (start - arrival) * scale, 12, 2)
        drawing.rect("c0", left + start * scale, at + 3, (end - start) * scale, 12, 2)
    below = top + len(requests) * step + 4
    drawing.text(x, below + 14, "instance", "small", "start")
    for start, end, text in batches:
        drawing.rect("box", left + start * scale, below, (end - start) * scale, 22)
        drawing.text(left + (start + end) / 2 * scale, below + 15, text, "small")
    axis = below + 34
    drawing.line((left, axis), (left + 20 * scale, axis), kind="thin")
    for tick in range(0, 21, 5):
        drawing.line((left + tick * scale, axis), (left + tick * scale, axis + 4), kind="thin")
        drawing.text(left + tick * scale, axis + 18, f"{tick} ms", "small")


def batching():
    drawing = Drawing(900, 300, "Requests wait in the queue until an instance is idle, and run together as a batch")
    gantt(drawing, 20, 34, 16, "dynamic_batching { }",
          [(0, 0, 5), (1, 5, 11), (2.5, 5, 11), (4, 5, 11), (6, 11, 16.5), (9, 11, 16.5)],
          [(0, 5, "1 row"), (5, 11, "3 rows"), (11, 16.5, "2 rows")])
    gantt(drawing, 466, 34, 16, "max_queue_delay_microseconds: 2000",
          [(0, 2, 7.5), (1.5, 2, 7.5), (4, 7.5, 13.5), (5, 7.5, 13.5), (7, 7.5, 13.5), (12, 14, 19)],
          [(2, 7.5, "2 rows"), (7.5, 13.5, "3 rows"), (14, 19, "1 row")])
    drawing.rect("wait", 20, 268, 14, 12, 2)
    drawing.text(40, 279, "waits in the queue", "small", "start")
    drawing.rect("c0", 160, 268, 14, 12, 2)
    drawing.text(180, 279, "runs", "small", "start")
    drawing.text(466, 279, "While the instance is busy for longer, the delay adds nothing.", "small", "start")
    drawing.write("batching.svg")


def ensemble():
    drawing = Drawing(900, 190, "The ensemble say_digit: image, shrink, pixels, digits, scores, say, word")
    drawing.area(112, 16, 660, 158, "say_digit: an ensemble, one request")
    drawing.text(56, 84, "image", "code")
    drawing.text(56, 100, "UINT8 [32, 32]", "small")
    for x, name, kind in [(136, "shrink", "ONNX"), (360, "digits", "ONNX"), (584, "say", "Python")]:
        drawing.box(x, 62, 124, 60, name, kind)
    drawing.arrow((104, 92), (136, 92))
    drawing.arrow((260, 92), (360, 92))
    drawing.text(310, 84, "pixels", "code")
    drawing.arrow((484, 92), (584, 92))
    drawing.text(534, 84, "scores", "code")
    drawing.arrow((708, 92), (796, 92))
    drawing.text(838, 88, "word", "code")
    drawing.text(838, 104, "STRING [1]", "small")
    drawing.arrow((534, 92), (534, 150), (796, 150))
    drawing.text(838, 146, "scores", "code")
    drawing.text(838, 162, "FP32 [10]", "small")
    drawing.write("ensemble.svg")


def phases(drawing, x, y, name, parts):
    """A row of phases: (start, end, kind, text)."""
    drawing.text(x, y + 19, name, "small", "start")
    for start, end, kind, text in parts:
        drawing.rect(kind, start, y, end - start, 28, 3)
        drawing.text((start + end) / 2, y + 18.5, text, "small on" if kind[0] == "c" else "small")


def marks(drawing, top, bottom, listed):
    for x, text in listed:
        drawing.line((x, top + 8), (x, bottom), kind="thin dashed")
        drawing.text(x, top, text, "small")


def drain():
    drawing = Drawing(900, 232, "The end of a server: it leaves, drains, and ends")
    marks(drawing, 28, 210, [(250, "SIGTERM"), (440, "--drain-delay is over"), (640, "last answer")])
    drawing.text(884, 28, "--exit-timeout-secs is over", "small", "end")
    drawing.line((850, 36), (850, 210), kind="thin dashed")
    phases(drawing, 20, 48, "server", [(130, 250, "box", "serves"), (250, 440, "box", "leaves"), (440, 640, "box", "drains"), (640, 700, "box", "exit 0")])
    phases(drawing, 20, 90, "health check", [(130, 250, "c2", "ready"), (250, 640, "c4", "not ready")])
    phases(drawing, 20, 132, "new connections", [(130, 440, "c2", "served"), (440, 500, "c2", "50 ms"), (500, 640, "c1", "refused at once")])
    phases(drawing, 20, 174, "open requests", [(130, 440, "c2", "answered"), (440, 640, "c2", "answered, then closed")])
    drawing.write("drain.svg")


def hand_over():
    drawing = Drawing(900, 190, "A hand-over: the new server loads its models while the older one serves")
    marks(drawing, 28, 172, [(250, "SIGUSR2"), (520, "the new server is ready"), (740, "last answer")])
    phases(drawing, 20, 48, "older server", [(130, 520, "c2", "serves"), (520, 740, "box", "stops accepting, drains"), (740, 800, "box", "exit 0")])
    phases(drawing, 20, 90, "new server", [(250, 520, "box", "gets the sockets, loads its models"), (520, 870, "c2", "serves")])
    phases(drawing, 20, 132, "new connections", [(130, 520, "c4", "to the older server"), (520, 870, "c4", "to the new server")])
    drawing.write("hand-over.svg")


for draw in (request_path, batching, ensemble, drain, hand_over):
    draw()
