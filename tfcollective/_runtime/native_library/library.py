"""Loads ``libtfcollective.so`` and turns its codes into exceptions: the one border between C and Python."""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tfcollective._base import errors
from tfcollective._runtime.native_library import abi

LIBRARY_NAME = "libtfcollective.so"

#: Every code but OK, and the exception that it becomes.
ERROR_CLASSES: dict[errors.Code, type[errors.CollectiveError]] = {
    cls.code: cls
    for cls in vars(errors).values()
    if isinstance(cls, type) and issubclass(cls, errors.CollectiveError) and cls is not errors.CollectiveError
}


def to_exception(code: int, message: str, peer: int = -1, sys_errno: int = 0) -> errors.CollectiveError:
    """The exception for a native code. An unknown code becomes an InternalError that says so."""
    try:
        cls = ERROR_CLASSES[errors.Code(code)]
    except (ValueError, KeyError):
        return errors.InternalError(f"the native library returned the unknown code {code}: {message}")
    return cls(message, peer=peer if peer >= 0 else None, sys_errno=sys_errno or None)


class Library:
    """The loaded library. Attributes named like the C functions are callable with the signatures of the table.

    Raises:
        ConfigError: the file is missing or does not load.
        ProtocolError: it was built for another version of the C interface.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            self._dll = ctypes.CDLL(str(path))
        except OSError as error:
            raise errors.ConfigError(_why_not_loaded(path, error)) from error
        self._check_version()
        self._functions: dict[str, Any] = {}
        for name, (result, arguments) in abi.FUNCTIONS.items():
            # A library that was built from older sources lacks what has been added since; only that cannot be called.
            function = getattr(self._dll, name, None)
            if function is not None:
                function.restype = result
                function.argtypes = arguments
                self._functions[name] = function

    def _check_version(self) -> None:
        try:
            version = int(self._dll.tfc_abi_version())
        except AttributeError as error:
            raise errors.ProtocolError(f"{self.path} is not tfcollective's native library") from error
        if version != abi.ABI_VERSION:
            raise errors.ProtocolError(
                f"{self.path} has version {version} of the C interface, this package needs {abi.ABI_VERSION}: "
                "rebuild or reinstall tfcollective"
            )

    def function(self, name: str) -> Any:
        """The C function of that name, signature set. For calls that cannot fail.

        Raises:
            ProtocolError: the library is older than this package and has no such function.
        """
        try:
            return self._functions[name]
        except KeyError:
            raise errors.ProtocolError(
                f"{self.path} is older than this package: it has no {name}. Rebuild or reinstall tfcollective"
            ) from None

    def call(self, name: str, *arguments: object) -> None:
        """Calls a fallible function (without its last argument, the error) and raises what it reports."""
        error = abi.Error(struct_size=ctypes.sizeof(abi.Error))
        self.check(name, self.function(name)(*arguments, ctypes.byref(error)), error)

    @staticmethod
    def check(name: str, code: int, error: abi.Error) -> None:
        """Raises what the function of that name has reported."""
        if code:
            message = error.message.decode("utf-8", "replace") or f"{name} failed with code {code}"
            raise to_exception(code, message, error.peer, error.sys_errno)

    def version(self) -> str:
        """The library's version, as text."""
        text: bytes = self._functions["tfc_version"]()
        return text.decode("utf-8")


def _why_not_loaded(path: Path, error: OSError) -> str:
    tree = path.parents[3] if len(path.parents) > 3 else path
    if path == default_path() and not path.exists() and (tree / "CMakeLists.txt").exists():
        return (
            f"you are in tfcollective's source tree ({tree}), which is not built and hides the installed package: run "
            "this in another directory, with a script that is not in the tree; or build the tree (make develop)"
        )
    return (
        f"cannot load the native library {path}: {error}. Reinstall tfcollective; in a source checkout build it first "
        "(make develop)."
    )


def default_path() -> Path:
    """Returns the path where the wheel puts the library: beside this module."""
    return Path(__file__).resolve().parent / LIBRARY_NAME


_lock = threading.Lock()
_loaded: dict[Path, Library] = {}


def load(path: Path | str | None = None) -> Library:
    """Loads the library once a process and path.

    Args:
        path: another build than the package's own (for developers).
    """
    resolved = Path(path).resolve() if path else default_path()
    with _lock:
        if resolved not in _loaded:
            _loaded[resolved] = Library(resolved)
        return _loaded[resolved]


def log_callback(sink: Callable[[int, str], None]) -> Any:
    """A ``tfc_log_fn`` that hands (level, message) to `sink`. The caller keeps it alive while C may call it."""

    def forward(_user: object, level: int, message: bytes | None) -> None:
        sink(level, (message or b"").decode("utf-8", "replace"))

    return abi.LogFn(forward)
