"""Tests of the process of a Python model. See `worker_test.py`."""
