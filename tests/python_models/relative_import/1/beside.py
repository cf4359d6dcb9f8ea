"""In the version's directory, beside model.py."""

OFFSET = 1


def add(x, y):
    return x + x.dtype.type(y)
