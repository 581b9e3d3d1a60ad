"""The pure part of bucket plans."""

from __future__ import annotations

import pytest

pytest.importorskip("tensorflow")

from tfcollective._runtime.communicator import Average, Sum
from tfcollective.tensorflow._plan import (
    Bucket,
    BucketSizes,
    GradientSpec,
    PlanNames,
    Reduction,
    fixed_sizes,
    plan_buckets,
    signature,
)

pytestmark = pytest.mark.tensorflow

KIB = 1 << 10


def specs(*kib: int, dtype: str = "float32", group: int | None = None) -> list[GradientSpec]:
    return [GradientSpec(i, f"v{i}", (size * KIB // 4,), dtype, 4, group) for i, size in enumerate(kib)]


def members(*args: object, **kwargs: object) -> list[tuple[int, ...]]:
    return [bucket.members for bucket in plan_buckets(*args, **kwargs)]  # type: ignore[arg-type]


def test_reverse_order_and_small_first_bucket() -> None:
    got = members(specs(4, 4, 4, 4, 4, 4), BucketSizes(first=4 * KIB, other=12 * KIB))
    assert got == [(5,), (4, 3, 2), (1, 0)]


def test_a_gradient_above_the_limit_is_alone() -> None:
    assert members(specs(4, 100, 4), fixed_sizes(8 * KIB)) == [(2,), (1,), (0,)]


def test_buckets_are_filled_in_the_given_order() -> None:
    got = members(specs(4, 4, 4, 4, 4, 4), BucketSizes(first=4 * KIB, other=8 * KIB), [2, 5, 0, 1, 4, 3])
    assert got == [(2,), (5, 0), (1, 4), (3,)]


def test_a_bucket_starts_with_its_last_member() -> None:
    mixed = [GradientSpec(i, f"v{i}", (8,), dtype, 4) for i, dtype in enumerate(["a", "b", "a", "b"])]
    assert plan_buckets(mixed, fixed_sizes(KIB), [1, 0, 2, 3]) == (Bucket("a", (0, 2)), Bucket("b", (1, 3)))


def test_small_gradients_join_the_next_bucket() -> None:
    sizes = BucketSizes(first=8 * KIB, other=8 * KIB, least=2 * KIB)
    assert members(specs(100, 1, 100, 2, 1), sizes) == [(4, 3), (2,), (1, 0)]


def test_nothing_to_reduce_is_no_bucket() -> None:
    assert plan_buckets([], fixed_sizes(KIB)) == ()


def test_every_gradient_is_in_exactly_one_bucket() -> None:
    got = members(specs(*range(1, 40)), BucketSizes(first=KIB, other=32 * KIB))
    assert sorted(index for bucket in got for index in bucket) == list(range(39))
    assert all(sum(range(1, 40)[i] for i in bucket) <= 32 or len(bucket) == 1 for bucket in got)


def test_each_bucket_has_one_dtype() -> None:
    mixed = [GradientSpec(i, f"v{i}", (8,), dtype, 4) for i, dtype in enumerate(["a", "b", "a", "b", "a"])]
    assert plan_buckets(mixed, fixed_sizes(KIB)) == (Bucket("b", (3, 1)), Bucket("a", (4, 2, 0)))


def test_groups_are_kept_together_whatever_their_size() -> None:
    assert members(specs(4, 4, 4, 4, group=7), fixed_sizes(4 * KIB)) == [(3, 2, 1, 0)]


def test_unknown_dimensions_do_not_count() -> None:
    assert GradientSpec(0, "v", (None, 3), "float32", 4).nbytes == 12


def test_signature_has_a_line_a_gradient() -> None:
    kernel = GradientSpec(0, "dense/kernel", (None, 3), "float32", 4)
    gradients = [kernel, GradientSpec(2, "dense/bias", (), "float16", 2)]
    buckets = plan_buckets(gradients, fixed_sizes(KIB))
    assert signature(gradients, buckets, Reduction(Average, 0.5, 2.0)).splitlines() == [
        "bucket 0: variable 2 [] float16 average prescale=0.5 postscale=2.0\t(dense/bias)",
        "bucket 1: variable 0 [?,3] float32 average prescale=0.5 postscale=2.0\t(dense/kernel)",
    ]


def test_a_plan_is_named_by_scope_and_content() -> None:
    names = PlanNames()
    assert names.name("tape", "x") == "tape#0"
    assert names.name("tape", "y") == "tape#1"
    assert names.name("other", "y") == "other#0"
    assert names.name("tape", "x") == "tape#0"


def test_reduction_is_part_of_the_content() -> None:
    gradients = specs(1)
    buckets = plan_buckets(gradients, fixed_sizes(KIB))
    assert signature(gradients, buckets, Reduction(Sum)) != signature(gradients, buckets, Reduction(Average))
