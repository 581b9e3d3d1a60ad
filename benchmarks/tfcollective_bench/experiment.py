"""The steps that all benchmarks share: cases run in turns, here or on the hosts of a test bed, and give samples."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from typing import TypeAlias

from tfcollective._base.clock import Deadline
from tfcollective._base.errors import LaunchError, UnsupportedError
from tfcollective_bench.interleave import Event, Failure, Record, Variant, Watch, interleave
from tfcollective_bench.model import RunnerState, RunnerStatus, Sample
from tfcollective_bench.options import LOOPBACK
from tfcollective_bench.testbed import NetnsTestbed, opened

__all__ = ["Case", "Measured", "Place", "run", "statuses"]

#: Where a case runs: the link and the number of hosts of a test bed; no hosts: on this host.
Place: TypeAlias = "tuple[str, int]"
HERE: Place = (LOOPBACK, 0)


@dataclass(frozen=True)
class Case:
    """A case of an experiment, which takes turns with the others.

    Attributes:
        name: unique; how events call it.
        runner: whose it is.
        variant: makes its command, given the test bed of its place, or None on this host.
        place: where it runs. Cases of one place take turns; the places follow each other.
        rounds: how often it runs, if not as often as the experiment says; after the others of its place.
    """

    name: str
    runner: str
    variant: Callable[[NetnsTestbed | None], Variant]
    place: Place = HERE
    rounds: int | None = None


@dataclass
class Measured:
    """Samples, failures by runner, and why a link could not be had."""

    samples: list[Sample] = field(default_factory=list)
    failures: dict[str, list[Failure]] = field(default_factory=dict)
    refused: dict[str, str] = field(default_factory=dict)


def run(
    cases: Sequence[Case],
    to_samples: Callable[[str, Record], Iterable[Sample]],
    *,
    rounds: int,
    watch: Watch,
    budget_s: float = 0.0,
) -> Measured:
    """Measures; returns when all rounds are over.

    Args:
        to_samples: the samples of one line of a case, given the case's name.
        watch: given the number of turns, opens something that takes every event.
        budget_s: no turn begins after so many seconds; 0: no limit.

    Raises:
        UnsupportedError: no place can be had: network namespaces need root.
    """
    measured = Measured()
    until = Deadline.after(budget_s) if budget_s else None
    with watch(sum(case.rounds or rounds for case in cases)) as tell:
        for place in dict.fromkeys(case.place for case in cases):
            here = {case.name: case for case in cases if case.place == place}
            try:
                with _opened(place) as testbed:
                    for event in _turns(list(here.values()), testbed, rounds, until):
                        tell(event)
                        if isinstance(event, Record):
                            measured.samples.extend(to_samples(event.variant, event))
                        elif isinstance(event, Failure):
                            measured.failures.setdefault(here[event.variant].runner, []).append(event)
            except LaunchError as error:
                measured.refused[place[0]] = str(error)
    if measured.refused and not measured.samples and not measured.failures:
        reasons = "; ".join(dict.fromkeys(measured.refused.values()))
        raise UnsupportedError(f"{reasons} (the link {LOOPBACK} needs neither)")
    return measured


@contextmanager
def _opened(place: Place) -> Iterator[NetnsTestbed | None]:
    """The test bed of a place while it is open; LaunchError when it cannot be had."""
    link, hosts = place
    if not hosts:
        yield None
        return
    with opened(NetnsTestbed(hosts, link)) as testbed:
        yield testbed


def _turns(cases: Sequence[Case], testbed: NetnsTestbed | None, rounds: int, until: Deadline | None) -> Iterator[Event]:
    for times in sorted({case.rounds for case in cases}, key=lambda times: times is not None):
        variants = [case.variant(testbed) for case in cases if case.rounds == times]
        with closing(interleave(variants, times or rounds, until=until)) as events:
            yield from events


def statuses(titles: Mapping[str, str], missing: Mapping[str, str], measured: Measured) -> Iterator[RunnerStatus]:
    """Yields how the runners and the links fared.

    Args:
        titles: of the runners, by name.
        missing: how to install a runner that is not there.
    """
    for runner, title in titles.items():
        failed = measured.failures.get(runner)
        if runner in missing:
            yield RunnerStatus(runner, RunnerState.MISSING, missing[runner])
        elif failed:
            detail = "; ".join(f"{failure.variant}: {failure}" for failure in failed)
            yield RunnerStatus(runner, RunnerState.FAILED, detail)
        else:
            yield RunnerStatus(runner, RunnerState.RAN, title)
    for link, reason in measured.refused.items():
        yield RunnerStatus(f"link {link}", RunnerState.MISSING, reason)
