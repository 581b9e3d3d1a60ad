"""Counts what a job costs besides time: bytes on the wire and CPU seconds, between marks."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import psutil

__all__ = ["Meter", "Reading", "parse_net_dev", "watched_interfaces"]

_NET_DEV = Path("/proc/net/dev")
_LOOPBACK = "lo"


@dataclass(frozen=True)
class Reading:
    """The resources used in all measured time together.

    Attributes:
        sent_bytes: bytes that went over the wire, headers included, each counted once. On loopback those of the whole
            machine.
        cpu_seconds: of all processes of the job.
    """

    sent_bytes: int = 0
    cpu_seconds: float = 0.0


def watched_interfaces(veths: Sequence[str]) -> tuple[str, ...]:
    """The interfaces of this side on which a job's bytes can be counted: those of the hosts, or loopback."""
    return tuple(veths) if veths else (_LOOPBACK,)


def parse_net_dev(text: str) -> dict[str, int]:
    """Interface -> bytes received, from the text of ``/proc/net/dev``.

    Received on our end of a host's link is what the host has sent; on loopback both are the same.
    """
    counters = {}
    for line in text.splitlines():
        name, colon, numbers = line.partition(":")
        if colon:
            counters[name.strip()] = int(numbers.split()[0])
    return counters


class Meter:
    """Adds up what is used between the marks ``begin`` and ``end``. For one thread."""

    def __init__(self, interfaces: Sequence[str]) -> None:
        self._interfaces = interfaces
        self._begun: tuple[Mapping[str, int], float] | None = None
        self.reading = Reading()

    def mark(self, name: str) -> None:
        """Takes note of a mark; ``end`` without ``begin`` is nothing."""
        if name == "begin":
            self._begun = self._now()
        elif name == "end" and self._begun is not None:
            counters, cpu = self._now()
            before, cpu_before = self._begun
            sent = sum(counters.get(one, 0) - before.get(one, 0) for one in self._interfaces)
            self.reading = Reading(self.reading.sent_bytes + sent, self.reading.cpu_seconds + cpu - cpu_before)
            self._begun = None

    def _now(self) -> tuple[Mapping[str, int], float]:
        return parse_net_dev(_NET_DEV.read_text("ascii")), _cpu_of_descendants()


def _cpu_of_descendants() -> float:
    """CPU seconds of all processes below this one. A process that ends takes its own with it."""
    total = 0.0
    for process in psutil.Process().children(recursive=True):
        with contextlib.suppress(psutil.Error):
            times = process.cpu_times()
            total += times.user + times.system
    return total
