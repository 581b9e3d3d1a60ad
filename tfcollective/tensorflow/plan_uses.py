"""Which traced functions use a bucket plan, so that a plan that none of them needs can be given back."""

from __future__ import annotations

import threading
import weakref
from collections import Counter, deque
from collections.abc import Callable
from typing import TypeAlias

#: The number of its process set, and its name.
Plan: TypeAlias = tuple[int, str]


class PlanUses:
    """Counts the users of plans and forgets a plan when its last user has died.

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
        """Never blocks: the garbage collector may have interrupted this thread while it holds the lock. Who holds it
        looks at what has died when it lets go."""
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
