"""The native library: loading, signatures, error mapping. Private to the package."""

from tfcollective._runtime.native_library.library import Library, default_path, load

__all__ = ["Library", "default_path", "load"]
