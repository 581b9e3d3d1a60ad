"""The progress of a disturbed job, from the journals of its ranks: pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import median

from tfcollective_bench.journal import READY, STARTS, STEP, Line

__all__ = ["Outcome", "Progress", "Strike", "goodput", "outcomes", "steps_per_second", "stood_still"]

_LONGEST_WINDOW_S = 30.0
_LONG = 5.0  # times the median: the job stood still


@dataclass(frozen=True)
class Strike:
    """A fault as it was carried out.

    Attributes:
        number: of the fault in its schedule.
        kind: its name.
        planned: when it was due (s from the first step).
        at: when it struck (s, monotonic clock).
        size: of the world then.
        generation: of the world then.
        victims: the tasks that it hit.
        ends_ranks: whether their processes end by it.
        skipped: why it was not carried out; empty: it was.
    """

    number: int
    kind: str
    planned: float
    at: float
    size: int
    generation: int
    victims: tuple[str, ...] = ()
    ends_ranks: bool = False
    skipped: str = ""


@dataclass(frozen=True)
class Outcome:
    """The effect of a fault on the job.

    Attributes:
        strike: the fault.
        still: for how long (s) no step was completed after it.
        whole: until the first step of a world of as many ranks as before (s); None: it is none that ends a rank, or
            another one came in between.
    """

    strike: Strike
    still: float
    whole: float | None


class Progress:
    """The steps of a job, as far as their lines are known; lines of different ranks may come in any order."""

    def __init__(self) -> None:
        self.newest: dict[str, Line] = {}  # the last line of each task's process
        self.events: dict[tuple[str, str], float] = {}  # (task, event) -> when it came first
        self.sizes: dict[int, int] = {}  # by generation
        self._first: dict[tuple[int, int], float] = {}  # (step, generation) -> when the first rank had done it
        self._counts: dict[int, int] = {}  # step -> the generation whose world counts
        self.last_at = 0.0

    def take(self, lines: Iterable[Line]) -> None:
        """Adds lines, of each process in its order."""
        for line in lines:
            self.newest[line.task] = line
            self.events.setdefault((line.task, line.event), line.at)
            if line.event != STEP:
                continue
            key = (line.step, line.generation)
            self._first[key] = min(line.at, self._first.get(key, line.at))
            self._counts[line.step] = max(line.generation, self._counts.get(line.step, 0))
            self.sizes[line.generation] = line.size
            self.last_at = max(self.last_at, line.at)

    @property
    def generation(self) -> int:
        """The generation of the newest world that has done a step; 0 if there is none."""
        return max(self.sizes, default=0)

    def starts(self) -> list[float]:
        """Returns the times (s) that the processes took from the start of their program to their first world."""
        ready = ((task, at) for (task, event), at in self.events.items() if event == READY)
        return [at - self.events[task, STARTS] for task, at in ready if (task, STARTS) in self.events]

    @property
    def steps(self) -> int:
        """The number of steps that count."""
        return max(self._counts, default=0)

    @property
    def counted(self) -> list[int]:
        """The sizes of the worlds that did the steps that count, step by step. A step that several worlds did counts in
        the newest of them: the others did not commit it."""
        return [self.sizes[self._counts[step]] for step in range(1, self.steps + 1)]

    @property
    def missing(self) -> list[int]:
        """Steps that no rank has done though later ones were."""
        return [step for step in range(1, self.steps + 1) if step not in self._counts]

    @property
    def again(self) -> int:
        """The number of steps that were repeated."""
        return len(self._first) - len(self._counts)

    @property
    def completions(self) -> list[float]:
        """Returns the times at which steps were completed, including those that did not count."""
        return sorted(self._first.values())

    @property
    def first_steps(self) -> dict[int, float]:
        """Generation -> when its world completed its first step."""
        found: dict[int, float] = {}
        for (_, generation), at in self._first.items():
            found[generation] = min(at, found.get(generation, at))
        return found


def steps_per_second(progress: Progress) -> float:
    """Counted steps over the time from the first to the last; 0 if there are too few."""
    times = progress.completions
    return (progress.steps - 1) / (times[-1] - times[0]) if len(times) > 1 and times[-1] > times[0] else 0.0


def goodput(disturbed: Progress, calm: Sequence[Progress]) -> float:
    """The rate of the steps that count in the disturbed job over that of the undisturbed ones; 0 if there are none."""
    rates = [rate for rate in map(steps_per_second, calm) if rate]
    return steps_per_second(disturbed) / (sum(rates) / len(rates)) if rates else 0.0


def stood_still(progress: Progress) -> float:
    """The share of its time in which a job waited for its next step longer than five times the median."""
    times = progress.completions
    gaps = [later - earlier for earlier, later in pairwise(times)]
    if not gaps:
        return 0.0
    usual = median(gaps)
    return sum(gap - usual for gap in gaps if gap > _LONG * usual) / (times[-1] - times[0])


def outcomes(strikes: Sequence[Strike], progress: Progress) -> list[Outcome]:
    """Returns the outcome of each fault that was carried out."""
    times, worlds = progress.completions, sorted(progress.first_steps.items())
    struck = [strike for strike in strikes if not strike.skipped]
    found = []
    for number, strike in enumerate(struck):
        later = struck[number + 1 :]
        until = later[0].at if later else times[-1]
        next_loss = next((one.at for one in later if one.ends_ranks), times[-1])
        still = _longest_gap(times, strike.at, min(until, strike.at + _LONGEST_WINDOW_S))
        whole = None
        if strike.ends_ranks:
            sizes = progress.sizes
            again = (at for number, at in worlds if number > strike.generation and sizes[number] >= strike.size)
            first = next((at for at in again if at > strike.at), None)
            whole = first - strike.at if first is not None and first <= next_loss else None
        found.append(Outcome(strike, still, whole))
    return found


def _longest_gap(times: Sequence[float], begin: float, end: float) -> float:
    """The longest time between two steps, as far as it is after `begin` and before `end`."""
    inside = [at for at in times if begin < at < end]
    return max((later - earlier for earlier, later in pairwise([begin, *inside, max(begin, end)])), default=0.0)
