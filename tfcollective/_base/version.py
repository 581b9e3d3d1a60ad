"""The version of the package, and the versions of TensorFlow that it is tested with, in one place."""

__version__ = "1.0.0"
#: Minor versions of TensorFlow that are supported (`make test-tensorflows`), from the oldest to the newest.
TENSORFLOWS = ("2.15", "2.16", "2.17", "2.18", "2.19", "2.20", "2.21")
