"""Where a rank stands, and which way it may go."""

import pytest

from tfcollective._base.errors import StateError
from tfcollective._runtime.phase import Phase, next_phase

LIFE = (Phase.WAITING, Phase.BETWEEN, Phase.ENTERING, Phase.BETWEEN, Phase.BETWEEN, Phase.ENTERING, Phase.IN_WORLD)


def test_a_newcomer_enters_after_one_broken_world():
    at = LIFE[0]
    for phase in LIFE[1:]:
        at = next_phase(at, phase)
    assert at is Phase.IN_WORLD


@pytest.mark.parametrize("phase", Phase)
def test_a_rank_may_always_leave_never_return(phase):
    assert next_phase(phase, Phase.ENDED) is Phase.ENDED
    if phase is not Phase.ENDED:
        with pytest.raises(StateError, match=f"out of the job: it cannot be {phase.value} next"):
            next_phase(Phase.ENDED, phase)


@pytest.mark.parametrize("phase", [Phase.WAITING, Phase.IN_WORLD])
def test_a_world_is_left_before_the_next(phase):
    with pytest.raises(StateError, match=f"this process is {phase.value}: it cannot be entering a world next"):
        next_phase(phase, Phase.ENTERING)
