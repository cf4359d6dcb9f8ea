"""Prints the syntax tree of the Python file on standard input as JSON, for `steps::suggest`. It runs nothing of the file.

A list of nodes, each as [kind, line, fields], children before their parents. A field is the index of a node,
a list of indices, a text or a list of texts. The arguments are the most nodes and the most levels.
"""

import ast
import json
import sys

# Nodes without contents, which become their names.
WORDS = (ast.operator, ast.unaryop, ast.boolop, ast.cmpop)
# Fields that mean nothing here, and that not every release has.
LEFT_OUT = {"ctx", "type_comment", "type_ignores", "type_params", "kind", "lineno", "simple", "returns", "annotation"}


def fail(text):
    sys.stderr.write(text + "\n")
    raise SystemExit(1)


def unwrapped(node):
    """Python 3.8 has nodes of its own in subscripts."""
    return node.value if type(node).__name__ == "Index" else node


def constant(value):
    if value is None or value is True or value is False or value is Ellipsis:
        return {"type": "name", "value": str(value)}
    if isinstance(value, int):
        return {"type": "int", "value": str(value) if value.bit_length() <= 64 else "large"}
    if isinstance(value, bytes):
        return {"type": "bytes", "value": value.hex()}
    if isinstance(value, str):
        return {"type": "str", "value": value.encode("utf-8", "replace").decode("utf-8")}
    return {"type": type(value).__name__, "value": repr(value)}


def children(node):
    for name, value in ast.iter_fields(node):
        if name in LEFT_OUT or isinstance(node, ast.Constant):
            continue
        for child in value if isinstance(value, list) else [value]:
            if isinstance(child, ast.AST) and not isinstance(child, WORDS):
                yield unwrapped(child)


def field(value, index):
    if isinstance(value, WORDS):
        return type(value).__name__
    if isinstance(value, ast.AST):
        return index[id(unwrapped(value))]
    if isinstance(value, list):
        return [field(element, index) for element in value]
    return value if value is None else str(value)


def fields(node, index):
    if isinstance(node, ast.Constant):
        return constant(node.value)
    named = ((name, value) for name, value in ast.iter_fields(node) if name not in LEFT_OUT)
    return {"elts" if name == "dims" else name: field(value, index) for name, value in named}


def main(nodes_max, depth_max):
    try:
        tree = ast.parse(sys.stdin.buffer.read())
    except SyntaxError as error:
        fail("line %s: %s" % (error.lineno, error.msg))
    except ValueError as error:
        fail(str(error))
    except (MemoryError, RecursionError):
        fail("it is nested too deeply for Python")
    order, stack = [], [(tree, 1)]
    while stack:
        node, depth = stack.pop()
        if depth > depth_max:
            fail("line %s: it is nested deeper than %d levels" % (getattr(node, "lineno", 1), depth_max))
        if len(order) >= nodes_max:
            fail("it has more than %d expressions and statements" % nodes_max)
        order.append(node)
        stack.extend((child, depth + 1) for child in children(node))
    order.reverse()
    index = {id(node): place for place, node in enumerate(order)}
    nodes = []
    for node in order:
        kind = "Tuple" if type(node).__name__ == "ExtSlice" else type(node).__name__
        nodes.append([kind, getattr(node, "lineno", 0), fields(node, index)])
    json.dump({"nodes": nodes}, sys.stdout, separators=(",", ":"))


main(int(sys.argv[1]), int(sys.argv[2]))
