"""The scaffold of all benchmarks: cases in turns, at their places."""

import sys
from contextlib import contextmanager

import pytest

from tfcollective._base.errors import LaunchError, UnsupportedError
from tfcollective_bench import experiment
from tfcollective_bench.experiment import Case, run, statuses
from tfcollective_bench.interleave import Started, Variant
from tfcollective_bench.model import RunnerState, Sample


class Watch:
    """Notes the number of turns and who had them."""

    def __init__(self):
        self.turns, self.seen = 0, []

    @contextmanager
    def __call__(self, turns):
        self.turns = turns
        yield lambda event: self.seen.append(event.variant) if isinstance(event, Started) else None


def case(name, program, **more):
    return Case(name, name[0], lambda _testbed: Variant(name, (sys.executable, "-c", program), 60.0), **more)


def one_sample(name, record):
    return [Sample(name, {}, "x", "s", (record.content["x"],), record.round)]


def test_cases_with_own_rounds_come_last():
    cases = [case("a", "print('{\"x\": 1.0}')"), case("b, once", "print('{\"x\": 2.0}')", rounds=1)]
    cases.append(case("c", "raise SystemExit('broken')"))
    watch = Watch()
    measured = run(cases, one_sample, rounds=2, watch=watch)
    assert watch.turns == 5
    assert watch.seen == ["a", "c", "a", "b, once"]
    assert sorted((sample.runner, sample.values, sample.round) for sample in measured.samples) == [
        ("a", (1.0,), 0), ("a", (1.0,), 1), ("b, once", (2.0,), 0),
    ]  # fmt: skip
    found = {status.runner: status for status in statuses(dict.fromkeys("abcd", "good"), {"d": "get it"}, measured)}
    assert [found[name].state for name in "abcd"] == [
        RunnerState.RAN, RunnerState.RAN, RunnerState.FAILED, RunnerState.MISSING,
    ]  # fmt: skip
    assert "broken" in found["c"].detail
    assert found["d"].detail == "get it"


def test_an_unavailable_place_costs_only_its_cases(monkeypatch):
    @contextmanager
    def refuse(testbed):
        raise LaunchError(f"no {testbed.rate}")
        yield

    monkeypatch.setattr(experiment, "opened", refuse)
    there, elsewhere = case("a", "print('{\"x\": 1.0}')"), case("b", "", place=("1gbit", 2))
    measured = run([there, elsewhere], one_sample, rounds=1, watch=Watch())
    assert [sample.runner for sample in measured.samples] == ["a"]
    assert [(s.runner, s.detail) for s in statuses({}, {}, measured)] == [("link 1gbit", "no 1gbit")]
    with pytest.raises(UnsupportedError, match=r"no 1gbit \(the link loopback needs neither\)"):
        run([elsewhere], one_sample, rounds=1, watch=Watch())
