"""What a state that a program defines itself has to have."""

import pytest

from tfcollective.elastic import State


class Half(State):
    """Does not say how a rank takes the values of another."""

    def save(self) -> None:
        """Keeps nothing."""


@pytest.mark.parametrize(("method", "arguments"), [("restore", ()), ("take", (0,))])
def test_what_a_state_does_not_define_is_named(method: str, arguments: tuple[int, ...]) -> None:
    with pytest.raises(NotImplementedError, match=rf"Half has no {method}\(\): a state says in save\(\)"):
        getattr(Half(), method)(*arguments)
