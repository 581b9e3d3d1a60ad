import pytest

from tfcollective._base.errors import InvalidArgumentError
from tfcollective_bench.model import Sample
from tfcollective_bench.statistics import medians_by_round, paired_ratio, percentile, summarise


@pytest.mark.parametrize(
    ("values", "percent", "expected"),
    [([3], 50, 3), ([1, 2], 50, 1.5), ([4, 1, 3, 2], 0, 1), ([4, 1, 3, 2], 100, 4), ([0, 10], 90, 9), ([5, 5], 99, 5)],
)
def test_percentile(values, percent, expected):
    assert percentile(values, percent) == pytest.approx(expected)


@pytest.mark.parametrize(("values", "percent"), [([], 50), ([1.0], -1), ([1.0], 101)])
def test_percentile_refuses(values, percent):
    with pytest.raises(InvalidArgumentError):
        percentile(values, percent)


def test_summary():
    summary = summarise([float(value) for value in range(101)][::-1])
    assert (summary.count, summary.minimum, summary.p10, summary.median) == (101, 0, 10, 50)
    assert (summary.p90, summary.p99, summary.maximum) == (90, 99, 100)


def sample(number, *values):
    return Sample("x", {}, "latency", "s", values, number)


def test_medians_by_round_join_its_samples():
    assert medians_by_round([sample(1, 5.0), sample(0, 1.0, 2.0), sample(0, 9.0), sample(2)]) == {0: 2.0, 1: 5.0}


def test_paired_ratios_cancel_a_slow_round():
    ours, theirs = {0: 1.0, 1: 10.0, 2: 2.0}, {0: 3.0, 1: 30.0, 2: 6.0, 3: 100.0}
    ratio = paired_ratio(theirs, ours)
    assert ratio is not None
    assert (ratio.count, ratio.minimum, ratio.median, ratio.maximum) == (3, 3.0, 3.0, 3.0)


def test_no_common_round_is_no_ratio():
    assert paired_ratio({0: 1.0}, {1: 1.0}) is None
    assert paired_ratio({0: 1.0}, {0: 0.0}) is None
