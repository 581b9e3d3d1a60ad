"""Which losses of ranks speak against their host."""

import pytest

from tfcollective.launch.plan.early_failures import EarlyFailures

LONG = 1000.0


@pytest.fixture
def failures():
    return EarlyFailures(proven=10.0)


def test_each_try_that_ends_early_counts(failures):
    for number in range(1, 6):
        assert failures.ended("host", started=number, trained=9.9, now=number + 0.5) == number


def test_ranks_that_were_started_before_the_first_of_them_failed_count_once(failures):
    assert [failures.ended("host", started=0.0, trained=3.0, now=now) for now in (1.0, 2.0, 60.0)] == [1, 1, 1]
    # Their replacements: started at about the same time, too.
    assert [failures.ended("host", started=61.0, trained=0.0, now=now) for now in (62.0, 63.0)] == [2, 2]


def test_a_rank_that_has_trained_for_long_is_no_failure_of_its_host_and_ends_the_row(failures):
    for number in range(3):
        failures.ended("host", started=number, trained=0.0, now=number + 0.5)
    assert failures.ended("host", started=4.0, trained=10.0, now=20.0) == 0
    assert failures.ended("host", started=21.0, trained=0.0, now=22.0) == 1


def test_a_rank_that_has_trained_for_long_never_counts(failures):
    assert [failures.ended("host", started=number, trained=LONG, now=number) for number in range(5)] == [0] * 5


def test_hosts_are_judged_by_their_own_ranks(failures):
    failures.ended("a", started=0.0, trained=0.0, now=1.0)
    failures.ended("a", started=2.0, trained=0.0, now=3.0)
    assert failures.ended("b", started=4.0, trained=0.0, now=5.0) == 1
    assert failures.ended("a", started=4.0, trained=0.0, now=5.0) == 3
