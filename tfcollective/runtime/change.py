"""Whether the coordinator wants the world to change."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

from tfcollective.errors import CoordinatorError
from tfcollective.log import get_logger

if TYPE_CHECKING:
    from tfcollective.control.client import CoordinatorClient

_LOG = get_logger(__name__)


class ChangeWatch:
    """Follows, on a thread of its own, for which generation the members of the world are to come together.

    Attributes:
        pending: the newest one that the coordinator has named; 0: none.
    """

    def __init__(self, client: CoordinatorClient) -> None:
        self.pending = 0
        self._stopped = threading.Event()
        threading.Thread(target=self._follow, args=(client,), name="tfcollective-change", daemon=True).start()

    def stop(self) -> None:
        """Ends the thread, which may still wait for an answer."""
        self._stopped.set()

    def _follow(self, client: CoordinatorClient) -> None:
        from tfcollective.control.channel import Channel
        from tfcollective.control.protocol import PENDING

        try:
            for entry in Channel(client, cancelled=self._stopped.is_set).follow(PENDING):
                self.pending = int(str(entry.value))
        except CoordinatorError as error:  # it was closed meanwhile
            _LOG.debug("the coordinator cannot be asked for changes: %s", error)
