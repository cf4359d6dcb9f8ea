"""A module of the package, with a relative import of its own."""

from . import square


def halve(x):
    assert square(2) == 4
    return x / 2
