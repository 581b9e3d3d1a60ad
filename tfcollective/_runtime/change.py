"""Follows which world the coordinator wants next."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TYPE_CHECKING

from tfcollective._base.errors import CoordinatorError
from tfcollective._base.log import get_logger

if TYPE_CHECKING:
    from tfcollective._control.client.client import CoordinatorClient

_LOG = get_logger(__name__)


class ChangeWatch:
    """Follows, on a thread of its own, the generation for which the members of the world have to meet.

    Args:
        client: asks the coordinator.
        heard: called there with each generation that the coordinator names.

    Attributes:
        pending: the newest one that the coordinator has named; 0: none.
    """

    def __init__(self, client: CoordinatorClient, heard: Callable[[int], None] = lambda generation: None) -> None:
        self.pending = 0
        self._heard = heard
        self._stopped = threading.Event()
        threading.Thread(target=self._follow, args=(client,), name="tfcollective-change", daemon=True).start()

    def stop(self) -> None:
        """Ends the thread, which may still wait for an answer."""
        self._stopped.set()

    def _follow(self, client: CoordinatorClient) -> None:
        from tfcollective._control.client.channel import Channel
        from tfcollective._control.store_keys import PENDING

        try:
            for entry in Channel(client, cancelled=self._stopped.is_set).follow(PENDING):
                self.pending = int(str(entry.value))
                self._tell(self.pending)
        except CoordinatorError as error:  # it was closed meanwhile
            _LOG.debug("the coordinator cannot be asked for changes: %s", error)

    def _tell(self, generation: int) -> None:
        try:
            self._heard(generation)
        except Exception:  # noqa: BLE001  code of the program; the ranks agree on the change all the same
            _LOG.exception("a listener failed that was told of a change of the world")
