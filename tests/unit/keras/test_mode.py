"""Keras versions that lack a method divide nothing, and say so."""

from __future__ import annotations

import pytest

tf = pytest.importorskip("tensorflow")

from fake_world import fake_world

import tfcollective.keras  # noqa: F401  # changes Keras
from tfcollective._base.errors import UnsupportedError
from tfcollective.keras._copies import replace_method
from tfcollective.keras._parallel import mode

pytestmark = pytest.mark.tensorflow


class Trainer:
    def fit(self) -> int:
        return 1


def test_a_lacking_attribute_is_named() -> None:
    class Iterator(Trainer):
        def __init__(self) -> None:
            self._dataset = 1

    mode.check_attributes(Iterator, "fit", "_dataset")
    with pytest.raises(AttributeError, match="Iterator has no _steps"):
        mode.check_attributes(Iterator, "_dataset", "_steps")


def test_nothing_lacks_in_this_keras() -> None:
    with fake_world(), mode.divided():
        assert mode.active() is not None


def test_a_lacking_method_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mode, "_missing", [])
    replace = mode.noting(replace_method)
    assert replace(Trainer, "fit", lambda original, trainer: original(trainer) + 1)
    with fake_world(), mode.divided():
        assert mode.active() is not None
    assert not replace(Trainer, "predict", lambda original, trainer: original(trainer))
    with fake_world(), mode.divided(), pytest.raises(UnsupportedError, match="Trainer has no predict"):
        mode.active()
    assert Trainer().fit() == 2
