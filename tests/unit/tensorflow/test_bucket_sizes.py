"""How large buckets are."""

from __future__ import annotations

import pytest

pytest.importorskip("tensorflow")

from tfcollective.tensorflow._plan import (
    SHARED_MEMORY,
    GradientSpec,
    LinkCost,
    fixed_sizes,
    plan_buckets,
    sizes_for,
    sizes_for_network,
)

pytestmark = pytest.mark.tensorflow

MIB = 1 << 20
GIGABIT = 117e6


def test_a_given_size_is_the_bucket_size() -> None:
    assert fixed_sizes(8 * MIB).other == 8 * MIB
    assert fixed_sizes(8 * MIB).first == MIB
    assert fixed_sizes(1000).first == 1000


def test_the_fixed_cost_is_a_buckets_sixteenth() -> None:
    sizes = sizes_for(LinkCost(start_s=1e-3, bytes_per_s=1e9))
    assert sizes.other == 16_000_000
    assert sizes.first == MIB


def test_slow_links_have_smaller_buckets() -> None:
    link = sizes_for_network(4, 60e-6, GIGABIT)
    assert sizes_for_network(4, 60e-6, 10 * GIGABIT).other == pytest.approx(10 * link.other, rel=1e-3)
    assert sizes_for_network(4, 1e-3, GIGABIT).other > 10 * link.other
    assert sizes_for_network(4, 60e-6, GIGABIT).first == link.other // 4


@pytest.mark.parametrize(("start", "rate"), [(1e-9, 1e3), (10.0, 1e12)])
def test_no_figure_leads_to_absurd_buckets(start: float, rate: float) -> None:
    assert 256 << 10 <= sizes_for(LinkCost(start, rate)).other <= 32 * MIB


@pytest.mark.parametrize("link", [(0.0, 0.0), (1e-5, 0.0), (0.0, 1e9)])
def test_an_unmeasured_link_counts_as_shared_memory(link: tuple[float, float]) -> None:
    assert sizes_for_network(4, *link) == sizes_for(SHARED_MEMORY)


def perceptron(width: int, latency: float, rate: float) -> list[tuple[int, ...]]:
    shapes = [(784, width), (width,), (width, width), (width,), (width, 10), (10,)]
    gradients = [GradientSpec(i, f"v{i}", shape, "float32", 4) for i, shape in enumerate(shapes)]
    return [bucket.members for bucket in plan_buckets(gradients, sizes_for_network(4, latency, rate))]


@pytest.mark.parametrize("width", [1024, 2048])
def test_the_large_layers_of_a_perceptron_travel_apart(width: int) -> None:
    assert perceptron(width, 0.0, 0.0) == [(5, 4, 3, 2), (1, 0)]


def test_slow_links_give_last_layers_a_bucket() -> None:
    assert perceptron(1024, 60e-6, GIGABIT) == [(5, 4, 3), (2,), (1, 0)]
