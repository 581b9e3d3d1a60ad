"""The state that a program keeps over changes of the world."""

from __future__ import annotations

import copy
import queue
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from tfcollective import _runtime as runtime
from tfcollective._base import payload
from tfcollective._base.errors import StateError
from tfcollective._runtime.communicator import Max
from tfcollective.elastic._kept import kept_result
from tfcollective.elastic._notices import notification_manager

_NO_STATE = -2  # instead of the number of a commit


class HostsUpdatedInterrupt(RuntimeError):  # noqa: N818  # Horovod's name
    """The world is about to change, though nothing has failed. Raised on all ranks at the same commit.

    Attributes:
        skip_sync: Horovod's; here ranks sync after every change, which costs little where nothing differs.
    """

    def __init__(self, skip_sync: bool = False) -> None:
        super().__init__("the world is about to change")
        self.skip_sync = skip_sync


class State:
    """The base of all states: when it is saved, given back, and given to other ranks.

    Subclasses say what is saved (:meth:`save`, :meth:`restore`) and how a rank takes that of another (:meth:`take`);
    those written for Horovod have a :meth:`sync` of their own instead.

    Args:
        bcast_object: Horovod's; not needed.
        get_rank: Horovod's; not needed.
    """

    def __init__(self, bcast_object: object = None, get_rank: object = None) -> None:
        self._bcast_object, self._rank = bcast_object, get_rank  # subclasses written for Horovod look for them
        self._commits = -1  # the number of the last one; -1: never
        self._reset_callbacks: list[Callable[[], None]] = []
        self._host_messages: queue.Queue[tuple[float, int]] = queue.Queue()  # Horovod's name: programs look into it

    def register_reset_callbacks(self, callbacks: Sequence[Callable[[], None]]) -> None:
        """Functions to call, in this order, after each change of the world, before the ranks sync. Only ranks that were
        in the last world call them: they must not use collectives."""
        self._reset_callbacks.extend(callbacks)

    def on_reset(self) -> None:
        """The world has changed."""
        self._host_messages = queue.Queue()
        self.reset()
        for callback in self._reset_callbacks:
            callback()

    def on_hosts_updated(self, timestamp: float, update_res: int) -> None:
        """The world will change: all ranks raise HostsUpdatedInterrupt at their next commit if one of them has been
        told so. Called by :func:`run` on rank 0, on another thread, and by programs written for Horovod.

        Args:
            timestamp: when that was known, in seconds since 1970.
            update_res: what has become of the hosts: 1 removed, 2 added, 3 both, or unknown.
        """
        self._host_messages.put((timestamp, update_res))

    def _was_told(self) -> bool:
        """True if a message says that the world will change; takes all messages."""
        told = False
        while not self._host_messages.empty():
            timestamp, _ = self._host_messages.get()
            told |= not notification_manager.is_over(timestamp)
        return told

    def commit(self) -> None:
        """Saves the state: what is done now is not done again. All ranks call it equally often.

        Raises:
            HostsUpdatedInterrupt: the world is about to change; :func:`run` catches it.
        """
        self._keep()
        if self._change_is_pending():
            raise HostsUpdatedInterrupt
        runtime.current().change_times.stepped()

    def check_host_updates(self) -> None:
        """Commits like :meth:`commit`, but only if the world will change: then no step is repeated, either."""
        if self._change_is_pending():
            self._keep()
            raise HostsUpdatedInterrupt
        runtime.current().change_times.stepped()

    def _change_is_pending(self) -> bool:
        """True if a rank knows that the world will change; the same on all ranks, which all call it."""
        import numpy as np

        if not runtime.settings().elastic:
            return False
        known = max(runtime.current().pending, runtime.generation() + 1 if self._was_told() else 0)
        heard = np.array(known, np.int64)
        newest = int(runtime.get_communicator().allreduce(heard, Max, name="elastic/pending"))
        return newest > runtime.generation()

    def _keep(self) -> None:
        self.save()
        self._commits += 1
        kept_result.forget()

    def sync(self) -> None:
        """Gives all ranks the newest commit that one of them has: a rank may have completed a step in which another one
        has failed. Where no rank has any, or several have the newest, the lowest rank's counts.

        Raises:
            StateError: the job had trained, and no rank is left that has its state.
        """
        import numpy as np

        mine = _NO_STATE if self._commits < 0 and runtime.current().without_state else self._commits
        commits = runtime.get_communicator().allgather(np.array([mine], np.int64), name="elastic/commits")
        newest = int(np.argmax(commits))
        if commits[newest] == _NO_STATE:  # and not the beginning: it would be done again as if nothing had been
            raise StateError(
                "all ranks of this world have just joined the job, and those that had its state ended before these had "
                "taken it: start the job again from a checkpoint, for example with --max-restarts"
            )
        if commits[newest] != mine:
            kept_result.forget()
        self.take(newest)
        runtime.current().without_state = False
        self._commits = max(int(commits[newest]), 0)

    def save(self) -> None:
        """Keeps the values that :meth:`restore` gives back."""
        raise self._missing("save")

    def restore(self) -> None:
        """Restores the last commit."""
        raise self._missing("restore")

    def take(self, root: int) -> None:
        """Takes what rank `root` has saved last; all ranks call it."""
        del root
        raise self._missing("take")

    def _missing(self, method: str) -> NotImplementedError:
        return NotImplementedError(
            f"{type(self).__name__} has no {method}(): a state says in save(), restore() and take() what it keeps; "
            "ObjectState, TensorFlowState and KerasState do"
        )

    def reset(self) -> None:
        """Called when the world has changed, before the callbacks; for subclasses."""


class ObjectState(State):
    """Values by name, which become attributes: ``ObjectState(epoch=0, batch=0)`` has ``state.epoch``.

    They are copied when they are saved, so a list that is changed in place is given back as it was.

    Args:
        bcast_object: Horovod's; not needed.
        get_rank: Horovod's; not needed.
        values: anything that cloudpickle and ``copy.deepcopy`` take.
    """

    def __init__(self, bcast_object: object = None, get_rank: object = None, **values: Any) -> None:
        super().__init__(bcast_object, get_rank)
        self._saved: Mapping[str, Any] = {}
        self._names = tuple(values)
        self.__dict__.update(values)
        ObjectState.save(self)

    def save(self) -> None:
        """See :class:`State`."""
        self._saved = {name: copy.deepcopy(getattr(self, name)) for name in self._names}

    def restore(self) -> None:
        """See :class:`State`."""
        self.__dict__.update(copy.deepcopy(dict(self._saved)))

    def take(self, root: int) -> None:
        """See :class:`State`."""
        mine = runtime.rank() == root
        data = payload.dumps(self._saved, "the state") if mine else b""
        data = runtime.broadcast_bytes(data, root, "elastic/state")
        if not mine:
            self._saved = payload.loads(data)
        self.restore()
