"""Draws the plots of the pages from the tables on the pages: python3 docs/figures/plots.py

Each plot lists the page and the rows that it shows; `tests/tidy/plots.rs` compares them with the page.
"""

import pathlib
import re

from svg import Drawing

DOCS = pathlib.Path(__file__).parents[1]


class Rows:
    """Rows of a page's tables, and the lines that were used."""

    def __init__(self, page):
        self.page, self.used = page, []
        self.lines = (DOCS / page).read_text().splitlines()

    def take(self, *begins, behind):
        """For each beginning, the cells of the first row that has it, behind the line that begins with `behind`."""
        start = next(at for at, line in enumerate(self.lines) if line.startswith(behind))
        found = []
        for begin in begins:
            line = next(line for line in self.lines[start:] if line.startswith(f"| {begin} |"))
            self.used.append(line)
            found.append([cell.strip() for cell in line.strip("|").split(" | ")])
        return found

    def source(self):
        return "\n".join([self.page, *self.used])


def digits(text):
    """The first number of a cell, as the page writes it."""
    return re.search(r"\d[\d,]*\.?\d*", text)[0]


def number(text):
    return float(digits(text).replace(",", ""))


def legend(drawing, x, y, names):
    for index, name in enumerate(names):
        drawing.rect(f"c{index}", x, y - 10, 14, 12, 2)
        drawing.text(x + 20, y, name, "small", "start")
        x += 40 + 6.6 * len(name)


def bars(drawing, x, y, width, groups, most, unit):
    """Horizontal bars: groups of (name, cells), with the number of the cell at the end of each bar."""
    for name, cells in groups:
        drawing.text(x - 10, y + 9 * len(cells) + 4, name, "", "end")
        for index, cell in enumerate(cells):
            length = max(number(cell) / most * width, 1)
            drawing.rect(f"c{index}", x, y + 18 * index + 1, length, 15, 2)
            drawing.text(x + length + 6, y + 18 * index + 13, f"{digits(cell)} {unit}", "small", "start")
        y += 18 * len(cells) + 12
    return y


def columns(drawing, x, y, width, height, groups, most, ticks, unit):
    """Vertical bars: groups of (name, values) above an axis with ticks."""
    for tick in ticks:
        at = y + height - tick / most * height
        drawing.line((x, at), (x + width, at), kind="thin")
        drawing.text(x - 8, at + 4, f"{tick:g} {unit}", "small", "end")
    step = width / len(groups)
    for index, (name, values) in enumerate(groups):
        bar = (step - 16) / len(values)
        for place, value in enumerate(values):
            tall = max(value / most * height, 1)
            drawing.rect(f"c{place}", x + index * step + 8 + place * bar, y + height - tall, bar - 2, tall, 1)
        drawing.text(x + (index + 0.5) * step, y + height + 18, name, "small")


def lines(drawing, x, y, width, height, names, series, most, ticks, unit):
    """Lines over places at equal distances, with a dot for each value."""
    for tick in ticks:
        at = y + height - tick / most * height
        drawing.line((x, at), (x + width, at), kind="thin")
        drawing.text(x - 8, at + 4, f"{tick:g} {unit}", "small", "end")
    step = width / (len(names) - 1)
    for index, values in enumerate(series):
        points = [(x + place * step, y + height - value / most * height) for place, value in enumerate(values)]
        drawing.line(*[(round(a, 1), round(b, 1)) for a, b in points], kind=f"line s{index}")
        for a, b in points:
            drawing.rect(f"c{index}", a - 3.5, b - 3.5, 7, 7, 3.5)
    for place, name in enumerate(names):
        drawing.text(x + place * step, y + height + 18, name, "small")


def against_triton():
    rows = Rows("performance.md")
    cases = ["HTTP, binary data, 64 connections", "HTTP, JSON, 64 connections", "gRPC, 64 connections",
             "gRPC, 8 connections with 8 streams"]
    python = [(row[0], row[1].split(" and "))
              for row in rows.take(*cases, behind="## Against Triton")]
    names = {"64 clients, beside tritonserver 2.51": "HTTP, binary data, 64 clients",
             "one client, the same": "HTTP, binary data, one client"}
    same = [(names[row[0]], row[1:3])
            for row in rows.take(*names, behind="## Triton's backends in C")]
    title = "CPU of the server per request, Deuteron and tritonserver 2.51"
    drawing = Drawing(900, 408, title, rows.source())
    drawing.text(20, 32, title, "strong", "start")
    legend(drawing, 620, 32, ["Deuteron", "tritonserver 2.51"])
    drawing.text(20, 64, "the same C backend in both", "small", "start")
    y = bars(drawing, 280, 72, 520, same, 150, "µs")
    drawing.text(20, y + 16, "our identity beside Triton's Python backend: only the front ends are counted", "small", "start")
    bars(drawing, 280, y + 28, 520, python, 150, "µs")
    drawing.write("plot-against-triton.svg")


def edge():
    rows = Rows("performance.md")
    kinds = ["plain", "10 keys", "TLS 1.3", "TLS 1.3, 10 keys", "TLS 1.3 by nginx", "TLS 1.3 by HAProxy"]
    groups = [(row[0], row[1:3])
              for row in rows.take(*kinds, behind="## The edge, beside a proxy")]
    title = "CPU per small request, including the proxy's"
    drawing = Drawing(900, 352, title, rows.source())
    drawing.text(20, 32, title, "strong", "start")
    legend(drawing, 620, 32, ["HTTP, JSON", "gRPC"])
    bars(drawing, 180, 56, 620, groups, 60, "µs")
    drawing.write("plot-edge.svg")


def clients():
    rows = Rows("performance.md")
    found = rows.take("`--spin=0`", "`--spin=auto`", behind="CPU per request by the number of clients")
    series = [[number(row[at]) for at in (2, 3, 4, 6)] for row in found]
    title = "CPU per request by the number of clients, closed loop, inside the shard"
    drawing = Drawing(900, 250, title, rows.source())
    drawing.text(20, 32, title, "strong", "start")
    legend(drawing, 620, 32, ["--spin=0", "--spin=auto"])
    names = ["2 clients", "4 clients", "8 clients", "64 clients"]
    lines(drawing, 90, 56, 740, 150, names, series, 20, (0, 5, 10, 15, 20), "µs")
    drawing.write("plot-clients.svg")


def balancers():
    rows = Rows("guide/capacity.md")
    kinds = ["least requests", "better of two", "round robin", "random", "hash of a key"]
    found = rows.take(*kinds, behind="<!-- table: balancers -->")
    fields = [[cell.split(", ") for cell in row[1:]] for row in found]
    loads = ["0.7", "0.9", "1", "2", "3"]
    group = lambda at, part: (f"load {loads[at]}", [number(row[at][part]) for row in fields])
    title = "Balancers by the load of the servers"
    drawing = Drawing(900, 292, title, rows.source())
    drawing.text(20, 32, "p99 of the answers", "strong", "start")
    columns(drawing, 70, 52, 370, 170, [group(at, 1) for at in range(3)], 50, (0, 10, 20, 30, 40, 50), "ms")
    drawing.text(470, 32, "Requests answered in time", "strong", "start")
    columns(drawing, 520, 52, 360, 170, [group(at, 0) for at in range(5)], 100, (0, 25, 50, 75, 100), "%")
    legend(drawing, 70, 274, kinds)
    drawing.write("plot-balancers.svg")


for draw in (against_triton, edge, clients, balancers):
    draw()
