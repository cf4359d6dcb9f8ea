"""The parts of a drawing, for diagrams.py and plots.py: a picture has its own ground, in light and in dark."""

import pathlib
from xml.sax.saxutils import escape

STYLE = """
text { font: 13px system-ui, "Segoe UI", "DejaVu Sans", sans-serif; fill: #1d2733; }
.small { font-size: 11.5px; fill: #55616f; }
.strong { font-weight: 600; }
.code { font-family: ui-monospace, "DejaVu Sans Mono", monospace; font-size: 11.5px; }
.ground { fill: #ffffff; stroke: #d5dbe3; }
.area { fill: #f3f6fa; stroke: #c3ccd8; }
.box { fill: #dfeaf8; stroke: #5b83b8; }
.line { stroke: #55616f; fill: none; stroke-width: 1.4; }
.thin { stroke: #c3ccd8; fill: none; }
.dashed { stroke-dasharray: 5 4; }
.head { fill: #55616f; }
.c0 { fill: #2f6db5; } .c1 { fill: #d17a1e; } .c2 { fill: #3d8f68; } .c3 { fill: #8a63b8; } .c4 { fill: #8b95a1; }
.s0 { stroke: #2f6db5; } .s1 { stroke: #d17a1e; } .s2 { stroke: #3d8f68; } .s3 { stroke: #8a63b8; } .s4 { stroke: #8b95a1; }
.wait { fill: #c9d3df; }
.on { fill: #ffffff; }
@media (prefers-color-scheme: dark) {
  text { fill: #e3e8ee; }
  .small { fill: #a5b0bd; }
  .ground { fill: #161b22; stroke: #333c48; }
  .area { fill: #1d242d; stroke: #3c4754; }
  .box { fill: #21364f; stroke: #6d9bd6; }
  .line { stroke: #a5b0bd; }
  .thin { stroke: #3c4754; }
  .head { fill: #a5b0bd; }
  .c0 { fill: #74a9ee; } .c1 { fill: #efa552; } .c2 { fill: #66c296; } .c3 { fill: #b896e6; } .c4 { fill: #8b95a1; }
  .s0 { stroke: #74a9ee; } .s1 { stroke: #efa552; } .s2 { stroke: #66c296; } .s3 { stroke: #b896e6; } .s4 { stroke: #8b95a1; }
  .wait { fill: #465362; }
  .on { fill: #10151b; }
}
"""


class Drawing:
    """A picture that grows part by part."""

    def __init__(self, width, height, title, source=""):
        self.width, self.height, self.title, self.source = width, height, title, source
        self.parts = [self.tag("rect", "ground", x=0.5, y=0.5, width=width - 1, height=height - 1, rx=8)]

    @staticmethod
    def tag(name, kind, text=None, **attributes):
        """An element; a number is written with one decimal at most."""
        number = lambda value: f"{value:.1f}".removesuffix(".0") if isinstance(value, (int, float)) else value
        listed = "".join(f' {key.replace("_", "-")}="{number(value)}"' for key, value in attributes.items())
        end = "/>" if text is None else f">{escape(text)}</{name}>"
        return f'<{name} class="{kind}"{listed}{end}'

    def rect(self, kind, x, y, width, height, rx=4):
        self.parts.append(self.tag("rect", kind, x=x, y=y, width=width, height=height, rx=rx))

    def text(self, x, y, text, kind="", anchor="middle"):
        self.parts.append(self.tag("text", kind, text, x=x, y=y, text_anchor=anchor))

    def box(self, x, y, width, height, name, *below):
        """A box with a name and lines of small text."""
        self.rect("box", x, y, width, height)
        first = y + height / 2 + 4.5 - 7.5 * len(below)
        self.text(x + width / 2, first, name, "strong")
        for index, line in enumerate(below):
            self.text(x + width / 2, first + 16 * (index + 1), line, "small")

    def area(self, x, y, width, height, name):
        """What belongs to one thread or server."""
        self.rect("area", x, y, width, height, 6)
        self.text(x + 12, y + 20, name, "strong", "start")

    def line(self, *points, kind="line"):
        """Straight pieces through points."""
        path = " ".join(f"{x:g},{y:g}" for x, y in points)
        self.parts.append(self.tag("polyline", kind, points=path))

    def arrow(self, *points, kind="line"):
        """The same, with a head at the last point."""
        (x0, y0), (x, y) = points[-2:]
        dx, dy = (x > x0) - (x < x0), (y > y0) - (y < y0)
        self.line(*points[:-1], (x - 6 * dx, y - 6 * dy), kind=kind)
        sides = [(x - 8 * dx + 4 * dy, y - 8 * dy + 4 * dx), (x - 8 * dx - 4 * dy, y - 8 * dy - 4 * dx)]
        path = " ".join(f"{a:g},{b:g}" for a, b in [(x, y), *sides])
        self.parts.append(self.tag("polygon", "head", points=path))

    def write(self, name):
        """Writes the file beside this one."""
        size = f'width="{self.width}" height="{self.height}" viewBox="0 0 {self.width} {self.height}"'
        head = f'<svg xmlns="http://www.w3.org/2000/svg" {size} role="img">\n<title>{escape(self.title)}</title>\n'
        source = f"<desc>\n{escape(self.source)}\n</desc>\n" if self.source else ""
        text = f"{head}{source}<style>{STYLE}</style>\n" + "\n".join(self.parts) + "\n</svg>\n"
        pathlib.Path(__file__).with_name(name).write_text(text)
