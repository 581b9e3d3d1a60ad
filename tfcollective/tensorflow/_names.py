"""Names by which ranks match their operations, equal on all ranks without any talk between them."""

from __future__ import annotations

import contextlib
import itertools
import re
import threading
import weakref
from collections import Counter, defaultdict, deque
from collections.abc import Callable, Iterator
from typing import Any, TypeAlias

import tensorflow as tf

from tfcollective import _runtime as runtime
from tfcollective._base.errors import CollectiveError
from tfcollective.tensorflow._plan import PlanNames

#: A bucket plan: the number of its process set, and its name.
Plan: TypeAlias = tuple[int, str]
_NUMBER = re.compile(r"(?:_\d+)+(?=[/:]|$)")

# By the number of the process set: a rank takes part in what its sets do, and in nothing else.
_plan_names: defaultdict[int, PlanNames] = defaultdict(PlanNames)
_step_names: defaultdict[int, PlanNames] = defaultdict(PlanNames)
_eager_counts: defaultdict[int, Iterator[int]] = defaultdict(itertools.count)


def plan_names(process_set_id: int) -> PlanNames:
    """The names of the bucket plans of a process set."""
    return _plan_names[process_set_id]


def step_names(process_set_id: int) -> PlanNames:
    """Returns the names of a process set's operations on single gradients in a step."""
    return _step_names[process_set_id]


def without_numbers(name: str) -> str:
    """`name` without the numbers that Keras and TensorFlow add to names that are taken: they count what this process
    has made before, and other ranks may have made other things."""
    return _NUMBER.sub("", name)


def keep_plan(name: str, process_set_id: int = 0) -> None:
    """The native side keeps the plan until the function that is being traced now is gone, or until the shutdown."""
    if tf.executing_eagerly():
        return
    graph = tf.compat.v1.get_default_graph()
    # Around the outermost function lies a graph of the whole process.
    while hasattr(getattr(graph, "outer_graph", None), "outer_graph"):
        graph = graph.outer_graph
    _plan_uses.add((process_set_id, name), graph)


def _forget_plan(plan: Plan) -> None:
    # A world that is gone has taken its plans with it.
    if runtime.is_initialized():
        with contextlib.suppress(CollectiveError):
            runtime.communicator_of_set(plan[0]).forget_plan(plan[1])


class PlanUses:
    """Counts the users of plans (traced functions) and forgets a plan when its last user has died.

    Args:
        forget: called once for each plan that has no users left; it must not raise. It may run on any thread, wherever
            the garbage collector does.
    """

    def __init__(self, forget: Callable[[Plan], None]) -> None:
        self._forget = forget
        self._lock = threading.Lock()
        self._users: Counter[Plan] = Counter()
        self._dead: deque[Plan] = deque()  # once for each user that has died and is still counted

    def add(self, plan: Plan, user: object) -> None:
        """`user` needs the plan as long as it lives."""
        with self._lock:
            self._users[plan] += 1
        weakref.finalize(user, self._user_died, plan).atexit = False
        self._settle()

    def _user_died(self, plan: Plan) -> None:
        self._dead.append(plan)
        self._settle()

    def _settle(self) -> None:
        """Removes names that have died. Never blocks: the garbage collector may have interrupted this thread while it
        holds the lock; the thread that holds it then does this when it lets go."""
        while self._dead and self._lock.acquire(blocking=False):
            try:
                while self._dead:
                    self._remove(self._dead.popleft())
            finally:
                self._lock.release()

    def _remove(self, plan: Plan) -> None:
        self._users[plan] -= 1
        if self._users[plan] == 0:
            del self._users[plan]
            self._forget(plan)


_plan_uses = PlanUses(_forget_plan)


def operation_name(name: str | None, process_set_id: int = 0, ignore_name_scope: bool = False) -> str:
    """`name`, or one made from the place of the call.

    Inside a function it is the outermost function's name, the name scope without numbers (unless `ignore_name_scope`)
    and a count within the graph: tracing again, on one rank only, gives the same names. Eagerly it is a count of calls.
    All kinds of operation share the counts, so that ranks which call different things at the same place get an error.
    Process sets count each on their own.
    """
    if name is not None:
        return name
    if tf.executing_eagerly():
        return f"eager/{next(_eager_counts[process_set_id])}"
    graph = tf.compat.v1.get_default_graph()
    base = "collective" if process_set_id == 0 else f"collective_of_set_{process_set_id}"
    scope = "" if ignore_name_scope else without_numbers(graph.get_name_scope() or "")
    base = f"{scope}/{base}" if scope else base
    with graph.name_scope(None):
        return f"{_outermost_name(graph)}/{graph.unique_name(base, mark_as_used=True)}"


def _outermost_name(graph: Any) -> str:
    """Name of the function that is being traced, seen through branches, loop bodies and nested functions (whose own
    names hold counters of the process); empty in a v1 graph."""
    name = ""
    while getattr(graph, "outer_graph", None) is not None:
        name = getattr(graph, "name", "")
        graph = graph.outer_graph
    return str(name)


def _new_world() -> None:
    _eager_counts.clear()  # plan names stay: functions that were traced hold them


runtime.on_shutdown(_new_world)
