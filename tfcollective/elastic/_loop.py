"""The loop around a training function: what it does when the world changes."""

from __future__ import annotations

import functools
import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from typing import Any, NoReturn, TypeVar, cast

from tfcollective import _runtime as runtime
from tfcollective._base.log import get_logger
from tfcollective._runtime.crash import came_through_collective
from tfcollective._runtime.ends import end_if_forked, handle_sigterm
from tfcollective._runtime.session import lost_rank
from tfcollective.elastic._kept import kept_result
from tfcollective.elastic._notices import notification_manager
from tfcollective.elastic._state import HostsUpdatedInterrupt, State

_Function = TypeVar("_Function", bound=Callable[..., Any])
_LOG = get_logger(__name__)


class HorovodInternalError(RuntimeError):
    """A collective has failed because a rank was lost. A program may raise it to have a new world formed."""


def run(func: _Function) -> _Function:
    """Decorates a training function, whose first argument is a :class:`State`: it is called again, in the new world,
    each time that the world has changed.

    Args:
        func: takes the state, and what else it is called with.

    Before each call all ranks take the newest commit that one of them has. When a rank is lost, the others go back to
    their last commit first; when the world only grows, or a rank leaves gracefully, no step is repeated.

    While the function runs, SIGTERM makes this rank leave gracefully, unless the program handles that signal itself: at
        the next commit the others continue without it, and it ends with SystemExit(0).

    An error of the program ends this rank, and with it the job, as it does without this decorator; with ``--on-error
    replace`` this rank alone, which is replaced.

    A rank that has returned is not waited for when another one is lost. Where rank 0 has returned, training is over:
    a rank that has missed the end of the last step, because another one was lost in it, ends with SystemExit(0).
    """

    @functools.wraps(func)
    def looped(state: State, *args: Any, **kwargs: Any) -> Any:
        with runtime.training(), _leaving_on_sigterm(), notification_manager.listening(state), closing(kept_result):
            while True:
                try:
                    joins = runtime.current().without_state
                    state.sync()
                    runtime.current().change_times.synced(tell=joins)
                    kept_result.begin()
                    result = func(state, *args, **kwargs)
                    runtime.current().leaving = ""  # training is complete: there is nothing left to leave
                    return result
                except HostsUpdatedInterrupt:
                    lost = None
                except Exception as error:
                    if not _is_change(error):
                        raise
                    lost = _lost_rank(error)
                    state.restore()
                if runtime.current().leaving:
                    _leave()
                runtime.reopen(lost)
                with runtime.solo():
                    state.on_reset()

    return cast(_Function, looped)


@contextmanager
def _leaving_on_sigterm() -> Iterator[None]:
    """Lets SIGTERM make this rank leave at the next commit while the context is open: platforms send it before they
    preempt a host. Between two worlds there is nothing to complete, and others may not come for a long time: it leaves
    at once.
    """
    free = signal.getsignal(signal.SIGTERM) == signal.SIG_DFL
    if not free or not runtime.settings().elastic or threading.current_thread() is not threading.main_thread():
        yield
        return

    pid = os.getpid()

    def heard(number: int, _frame: object) -> None:
        end_if_forked(number, pid)
        session = runtime.current()
        session.leaving = "SIGTERM"
        if session.between_worlds:
            raise SystemExit(0)  # what it interrupts may hold locks: the world is left at the end of the process

    handle_sigterm(heard)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)


def _leave() -> NoReturn:
    _LOG.warning("rank %d leaves the job gracefully: %s", runtime.rank(), runtime.current().leaving)
    runtime.shutdown()
    raise SystemExit(0)


def _is_change(error: Exception) -> bool:
    """True if the error says that another rank has broken the world, in a job that outlasts it."""
    if not runtime.settings().elastic:
        return False
    if isinstance(error, HorovodInternalError):
        return True
    # By the state of the world, not by the error's type: TensorFlow wraps it, for example where a py_function fails.
    return runtime.current().ended_by_peer() is not None and came_through_collective(error)


def _lost_rank(error: Exception) -> int | None:
    ended_by = runtime.current().ended_by_peer()
    _LOG.warning("generation %d has ended: %s", runtime.generation(), ended_by or error)
    return lost_rank(ended_by)
