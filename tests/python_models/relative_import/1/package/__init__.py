"""A package beside model.py."""


def square(x):
    return x * x
