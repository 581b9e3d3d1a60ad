"""Whether the engine of ``--engine`` can be had."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Sequence

from tfcollective.errors import ConfigError

__all__ = ["check_engine"]


_NEEDED = {
    "horovod": (
        "horovod",
        """Horovod is not installed for this Python. Build it beside TensorFlow 2.15 or older: \
HOROVOD_WITH_TENSORFLOW=1 HOROVOD_WITH_GLOO=1 pip install --no-build-isolation horovod==0.28.1""",
    ),
    "mpi": (
        "mpi4py",
        """mpi4py is not installed for this Python: pip install tfcollective[mpi], built against the MPI whose mpirun \
is on the path""",
    ),
}


def check_engine(engine: str, command: Sequence[str]) -> None:
    """ConfigError that says what to install, if the ranks run under this interpreter and it lacks the engine.

    What another interpreter has shows when the ranks import it.
    """
    module, advice = _NEEDED.get(engine, ("", ""))
    if module and command[0] == sys.executable and importlib.util.find_spec(module) is None:
        raise ConfigError(f"--engine {engine}: {advice}")
