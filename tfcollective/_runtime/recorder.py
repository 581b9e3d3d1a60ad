"""Records this rank's timeline and, on rank 0, writes that of all ranks to a file."""

from __future__ import annotations

import itertools
import json
import sys
import zlib
from pathlib import Path
from typing import TYPE_CHECKING

from tfcollective._base.clock import Deadline
from tfcollective._base.codec import decode, encode
from tfcollective._base.errors import CoordinatorError
from tfcollective._base.log import get_logger
from tfcollective._base.timeline import RankTimeline, check_writable, summarise, summary_text, trace_document
from tfcollective._base.timing import TIMING
from tfcollective._base.topology import Placement
from tfcollective._runtime.communicator import Communicator

if TYPE_CHECKING:
    from tfcollective._control.client.client import CoordinatorClient

CAPACITY = 100_000
_CLOCK_SAMPLES = 8
_LOG = get_logger(__name__)
_ordinals = itertools.count()


class TimelineRecorder:
    """A recording of a world: every rank starts and finishes it, rank 0 writes the file.

    The ranks' parts meet at the coordinator, so that a rank that is gone costs its own part only.
    """

    def __init__(
        self, path: str, communicator: Communicator, placement: Placement, client: CoordinatorClient | None
    ) -> None:
        self._path = Path(path)
        self._communicator = communicator
        self._placement = placement
        self._client = client
        self._ordinal = next(_ordinals)
        self._offset = 0

    def start(self) -> None:
        """Begins to record.

        Raises:
            ConfigError: the file cannot be written (rank 0).
        """
        if self._placement.rank == 0:
            check_writable(self._path)
        if self._placement.cross_size > 1 and self._client is not None:
            self._offset = self._client.clock_offset(_CLOCK_SAMPLES)
        self._communicator.start_timeline(CAPACITY)

    def finish(self) -> None:
        """Ends the recording; on rank 0 writes the file and shows who waited for whom. Never raises for what is
        missing: a timeline must not cost anybody a training run."""
        intervals, dropped = self._communicator.stop_timeline()
        mine = RankTimeline(self._placement.rank, tuple(intervals), dropped).shifted(self._offset)
        try:
            if self._placement.rank != 0:
                self._send(mine)
                return
            timelines = [mine, *self._receive()]
            self._path.write_text(json.dumps(trace_document(timelines)), encoding="utf-8")
            sys.stderr.write(f"timeline written to {self._path}\n{summary_text(summarise(timelines))}\n")
        except (CoordinatorError, OSError, ValueError, zlib.error) as error:
            _LOG.error("the timeline %s is not complete: %s", self._path, error)

    def _send(self, timeline: RankTimeline) -> None:
        if self._client is not None:
            data = zlib.compress(encode(timeline))
            self._client.put_blob(self._blob(timeline.rank), data)

    def _receive(self) -> list[RankTimeline]:
        if self._client is None:
            return []
        deadline = Deadline.after(TIMING.timeline_broken if self._communicator.info().broken else TIMING.timeline)
        found = []
        for rank in range(1, self._placement.size):
            data = self._client.get_blob(self._blob(rank), timeout=deadline.remaining())
            if data is None:
                _LOG.warning("rank %d left nothing for the timeline %s", rank, self._path)
            else:
                found.append(decode(zlib.decompress(data), RankTimeline, f"the timeline of rank {rank}"))
        return found

    def _blob(self, rank: int) -> str:
        return f"timeline/{self._ordinal}/{rank}"
