"""The native library: loading, signatures, error mapping. Private to the package."""

from tfcollective._native.library import Library, default_path, load

__all__ = ["Library", "default_path", "load"]
