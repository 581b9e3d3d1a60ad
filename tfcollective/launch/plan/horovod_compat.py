"""What a rank's environment needs for a script that was written for Horovod to run as it is: pure."""

from __future__ import annotations

import os
from collections.abc import Mapping

from tfcollective.agent.protocol import HOROVOD_PACKAGES
from tfcollective.topology import Placement

__all__ = ["PYTHONPATH", "compat_variables"]

PYTHONPATH = "PYTHONPATH"


def compat_variables(place: Placement, environ: Mapping[str, str]) -> dict[str, str]:
    """Additions to a rank's environment: where ``import horovod`` leads, and the ranks and sizes under the names that
    Horovod's launcher gives them.

    Args:
        place: the rank's.
        environ: what it inherits; modules that its PYTHONPATH leads to stay reachable.
    """
    inherited = environ.get(PYTHONPATH, "")
    words = {
        "RANK": place.rank,
        "SIZE": place.size,
        "LOCAL_RANK": place.local_rank,
        "LOCAL_SIZE": place.local_size,
        "CROSS_RANK": place.cross_rank,
        "CROSS_SIZE": place.cross_size,
    }
    return {
        PYTHONPATH: str(HOROVOD_PACKAGES) + (os.pathsep + inherited if inherited else ""),
        **{f"HOROVOD_{word}": str(value) for word, value in words.items()},
    }
