"""What the evaluator does next, and which checkpoints it sees: pure functions, no files, no clock."""

from __future__ import annotations

import pytest

from tfcollective.auxiliary_tasks._checkpoints import Checkpoint, FileFacts, checkpoints_of, number_in
from tfcollective.auxiliary_tasks._figures import Figures, Meter
from tfcollective.auxiliary_tasks._plan import (
    IDLE,
    MAX_STEPS,
    TRAINING_ENDED,
    Evaluate,
    Finish,
    Policy,
    View,
    Wait,
    next_action,
)

A, B, C = (Checkpoint(f"m/ckpt-{step}", "tensorflow", step, step, 1) for step in (1, 2, 3))
POLICY = Policy(max_steps=100, idle_timeout=60.0, poll_interval=5.0)


def view(found=(), settled=None, done=(), **more):
    identities = frozenset(c.identity for c in (found if settled is None else settled))
    return View(tuple(found), identities, done=frozenset(c.identity for c in done), **more)


@pytest.mark.parametrize(
    ("seen", "expected"),
    [
        (view(), Wait(5.0)),
        (view([A, B, C]), Evaluate(A)),
        (view([A, B, C], done=[A]), Evaluate(B)),
        (view([A, B, C], done=[A, B, C]), Wait(5.0)),
        (view([A, B], settled=[]), Wait(5.0)),
        (view([A, B], settled=[B]), Wait(5.0)),  # in order: A first
        (view([A, B], settled=[A]), Evaluate(A)),
        (view([A, B], broken=frozenset({A.identity})), Evaluate(B)),
        (view([A], broken=frozenset({A.identity})), Wait(5.0)),  # it may become whole
        (view([A], broken=frozenset({A.identity}), training_ended=True), Finish(TRAINING_ENDED)),
        (view([A], training_ended=True), Evaluate(A)),  # the last one, too
        (view([A], settled=[], training_ended=True), Wait(5.0)),
        (view([A], done=[A], training_ended=True), Finish(TRAINING_ENDED)),
        (view(training_ended=True), Finish(TRAINING_ENDED)),
        (view([A], done=[A], last_step=100), Finish(MAX_STEPS)),
        (view([A, B], done=[A], last_step=99), Evaluate(B)),
        (view(idle_for=57.0), Wait(3.0)),  # never beyond the timeout
        (view(idle_for=60.0), Finish(IDLE)),
        (view([A], idle_for=90.0), Evaluate(A)),
        (view([A], settled=[], idle_for=90.0), Finish(IDLE)),
    ],
)
def test_next_action(seen, expected):
    assert next_action(seen, POLICY) == expected


def test_the_newest_only():
    policy = Policy(only_latest=True)
    assert next_action(view([A, B, C]), policy) == Evaluate(C, (A, B))
    assert next_action(view([A, B, C], settled=[A, B]), policy) == Evaluate(B, (A,))


@pytest.mark.parametrize(
    ("name", "number"),
    [
        ("model.ckpt-1200", 1200),
        ("resnet50-03", 3),
        ("cp-0007-0.45", 7),
        ("best", None),
        ("0.25", None),
        ("w.01-0.2", 1),
    ],
)
def test_the_number_in_a_name(name, number):
    assert number_in(name) == number


def names(files):
    listing = {name: FileFacts(*facts) for name, facts in files.items()}
    return [c.name for c in checkpoints_of("m", listing)]


def test_only_complete_tensorflow_checkpoints_count():
    listing = {
        "ckpt-1.index": FileFacts(1, 1),
        "ckpt-1.data-00000-of-00002": FileFacts(1, 1),
        "ckpt-2.data-00000-of-00001": FileFacts(1, 1),
        "ckpt-3.index": FileFacts(1, 1),
        "ckpt-4.index": FileFacts(4, 10),
        "ckpt-4.data-00000-of-00002": FileFacts(9, 100),
        "ckpt-4.data-00001-of-00002": FileFacts(8, 1000),
        "checkpoint": FileFacts(9, 9),
    }
    assert checkpoints_of("m", listing) == (Checkpoint("m/ckpt-4", "tensorflow", 4, 9, 1110),)


def test_order_is_by_number_then_time():
    numbered = {"e9.keras": (3, 1), "e10.keras": (2, 1), "e11.weights.h5": (1, 1)}
    assert names(numbered) == ["e9.keras", "e10.keras", "e11.weights.h5"]
    one_without = {"e9.keras": (3, 1), "best.keras": (2, 1), "e11.keras": (1, 1)}
    assert names(one_without) == ["e11.keras", "best.keras", "e9.keras"]
    same_number = {"run 10 x3.keras": (1, 1), "run 9 x3.keras": (1, 1), "run 11 x3.keras": (0, 1)}
    assert names(same_number) == ["run 11 x3.keras", "run 9 x3.keras", "run 10 x3.keras"]


def test_a_rewritten_file_is_another_checkpoint():
    first, again = (checkpoints_of("m", {"best.keras": FileFacts(time, 5)})[0] for time in (1, 2))
    assert first.identity != again.identity


def test_the_four_figures():
    meter = Meter(started=100.0)
    assert meter.figures(110.0) == Figures(0.0, 0.0, None, 0)
    meter.evaluated(awake=4.0, steps=10, step_seconds=2.0, training_step=500)
    meter.evaluated(awake=1.0, steps=10, step_seconds=1.0, training_step=None)
    assert meter.figures(110.0) == Figures(0.5, 0.15, 500, 20)
