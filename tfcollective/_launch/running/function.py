"""Calls a function in every task: the launcher's half, and the rank's, which is a program of its own.

Function and results are user objects: they travel pickled, through the coordinator, over requests that both ends have
proved the job key for.
"""

from __future__ import annotations

import importlib
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import TYPE_CHECKING, Any

from tfcollective._base import failures, payload
from tfcollective._base.codec import decode, encode
from tfcollective._base.errors import ConfigError, CoordinatorError, InvalidArgumentError
from tfcollective._base.experiment import Trainable
from tfcollective._base.settings import Settings, environ_snapshot
from tfcollective._base.tasks import TaskKey
from tfcollective._control.client.client import CoordinatorClient
from tfcollective._control.identity import discover
from tfcollective._control.store_keys import experiment_key
from tfcollective._launch.plan.spec import FunctionCall

if TYPE_CHECKING:
    from tfcollective._control.serve.server import CoordinatorServer

_FUNCTION = "call/function"
_SYS_PATH = "call/sys_path"
_FETCH_S = 30.0
_MAX_CALL_BYTES = 256 << 20
_NOT_BY_HAND = "only tfcollective.run() starts this module"


def make_call(
    fn: Callable[..., Any],
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    sys_path: Sequence[str],
    most: int = _MAX_CALL_BYTES,
) -> FunctionCall:
    """Pickles a call; InvalidArgumentError when it cannot be, or is too large to send; ConfigError for arguments that
    are not a sequence and a mapping."""
    if not isinstance(args, Iterable) or isinstance(args, (str, bytes)):
        raise ConfigError(f"args: expected a list or tuple of the function's arguments, got {args!r}")
    if not isinstance(kwargs, Mapping):
        raise ConfigError(f"kwargs: expected a dict of the function's named arguments, got {kwargs!r}")
    what = f"the function {getattr(fn, '__name__', fn)!r}"
    data = payload.dumps((fn, tuple(args), dict(kwargs)), what)
    if len(data) > most:
        raise InvalidArgumentError(
            f"{what} and its arguments are {len(data) >> 20} MiB when pickled; at most {most >> 20} MiB can "
            "be sent: let it load large data itself"
        )
    return FunctionCall(data, tuple(sys_path))


@dataclass(frozen=True)
class _NamedFunction:
    """A function that travels by its name."""

    module: str
    name: str
    args: tuple[Any, ...]

    @property
    def __name__(self) -> str:
        return f"{self.module}.{self.name}"

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        try:
            module = importlib.import_module(self.module)  # noqa: TID251  a module of the user's
            function = getattr(module, self.name)
        except (ImportError, AttributeError) as error:
            raise ConfigError(f"cannot find the function {self.__name__}: {error}") from error
        return function(*self.args, *args, **kwargs)


def get_safe_experiment_fn(full_fn_name: str, *args: Any) -> Callable[..., Any]:
    """A function for :func:`tfcollective.run` that the ranks import by its name, in place of one that is pickled.

    The ranks need the module; its objects are never pickled, only ``args`` are, which come before those of the call.

    Args:
        full_fn_name: for example ``"package.module.function"``.
        args: its first arguments.

    Raises:
        ConfigError: the name has no module; or, on the ranks, the function is not found.
    """
    module, dot, name = full_fn_name.rpartition(".")
    if not dot or not module or not name.isidentifier():
        raise ConfigError(f"expected the name of a function as package.module.function, got {full_fn_name!r}")
    return _NamedFunction(module, name, args)


def publish(call: FunctionCall, coordinator: CoordinatorServer) -> None:
    """Makes the call available to the ranks."""
    coordinator.put_blob(_SYS_PATH, encode(call.sys_path))
    coordinator.put_blob(_FUNCTION, call.payload)


def collect(tasks: Sequence[TaskKey], coordinator: CoordinatorServer) -> dict[str, bytes]:
    """The results that the ranks have left, pickled, by task."""
    found = ((str(task), coordinator.get_blob(_result(task))) for task in tasks)
    return {task: data for task, data in found if data is not None}


def fetch_results(tasks: Sequence[TaskKey], client: CoordinatorClient) -> dict[str, bytes]:
    """The same for a process that is not the coordinator's."""
    found = ((str(task), client.get_blob(_result(task), timeout=0.0)) for task in tasks)
    return {task: data for task, data in found if data is not None}


def main() -> int:
    """Fetches the call, makes it, and leaves its result; an exception leaves its record and ends the process."""
    settings = Settings.load()
    failure_file = settings.failure_file
    if failure_file is None:
        raise CoordinatorError(_NOT_BY_HAND)
    _record_crash(failure_file)
    failures.begin_call(failure_file)  # a function that ends its process with code 0 has failed all the same
    _call(settings)
    failures.end_call(failure_file)
    return 0


def _record_crash(failure_file: str) -> None:
    """An exception that is not caught leaves its record. A hook of the function's own (``init()`` sets one, which
    knows more of the world) runs before this one, and the first record stays."""
    shown_by = sys.excepthook

    def hook(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        failures.write_exception(failure_file, error, now=time.monotonic())
        shown_by(kind, error, trace)

    sys.excepthook = hook


def _call(settings: Settings) -> None:
    identity = discover(settings, environ_snapshot())
    if identity.coordinator is None or identity.key is None:
        raise CoordinatorError(_NOT_BY_HAND)
    with CoordinatorClient(identity.coordinator, identity.key, identity.job_id) as client:
        places = decode(_fetch(client, _SYS_PATH), tuple[str, ...], "the function's search path")
        sys.path[:0] = [place for place in places if place not in sys.path]
        fn, args, kwargs = payload.loads(_fetch(client, _FUNCTION))
        result = _result_of(fn(*args, **kwargs), identity.task, client)
        if identity.task.is_trainer:
            client.put_blob(_result(identity.task), payload.dumps(result, f"the result of {identity.task}"))


def _result_of(returned: Any, task: TaskKey, client: CoordinatorClient) -> Any:
    """Returns the result of the task's part of an experiment; anything else is itself the result."""
    if not isinstance(returned, Trainable):
        return returned
    if not task.is_trainer:
        return returned.evaluate()
    if task.index == 0:  # rank 0 is among these; TensorBoard asks for its
        client.put(experiment_key(task), {"directory": returned.output_dir()})
    return returned.train()


def _fetch(client: CoordinatorClient, name: str) -> bytes:
    data = client.get_blob(name, timeout=_FETCH_S)
    if data is None:
        raise CoordinatorError(f"the launcher has not stored {name}")
    return data


def _result(task: TaskKey) -> str:
    return f"result/{task}"


if __name__ == "__main__":
    sys.exit(main())
