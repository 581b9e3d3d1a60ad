"""Finds signs that a process is one of several although no source gives its rank. Pure.

Such a process would train alone as rank 0, and so would all others of its job, with the same checkpoints.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from tfcollective._base.errors import ConfigError
from tfcollective._base.settings import Settings, variable
from tfcollective._base.tasks import is_number
from tfcollective._control.identity.cluster import check_task_without_cluster
from tfcollective._control.identity.model import Facts

ADVICE = f"for a process that is to train alone, set {variable('identity')}=single"


@dataclass(frozen=True)
class _Launcher:
    """The launcher of another system.

    Attributes:
        name: for people.
        rank, size: its variables. They count together only: scripts use such names for purposes of their own.
        mark: a variable that nothing else sets.
    """

    name: str
    rank: str
    size: str
    mark: str = ""


_OTHERS = (
    _Launcher("horovodrun", "HOROVOD_RANK", "HOROVOD_SIZE", mark="HOROVOD_GLOO_RENDEZVOUS_ADDR"),
    _Launcher("torchrun", "RANK", "WORLD_SIZE", mark="TORCHELASTIC_RUN_ID"),
    _Launcher("a launcher of JAX", "JAX_PROCESS_ID", "JAX_NUM_PROCESSES"),
)


def check_alone(facts: Facts) -> tuple[str, ...]:
    """Warnings for a process that no source gives a rank. Raises ConfigError that names the variable where it is
    certain that the process is one of several."""
    _check_settings(facts.settings)
    check_task_without_cluster(facts, ADVICE)
    return tuple(_foreign_ranks(facts.environ))


def _check_settings(settings: Settings) -> None:
    found = [
        f"{variable(field)}={value}"
        for field, value in (("size", settings.size), ("rendezvous", settings.rendezvous), ("task", settings.task))
        if value is not None
    ]
    if found and settings.size != 1:
        raise ConfigError(
            f"{' and '.join(found)}: this process is one of several, but nothing says which rank it is. Start it with "
            f"tfcollective run, srun or mpirun, or set TF_CONFIG; {ADVICE}"
        )


def _foreign_ranks(environ: Mapping[str, str]) -> Iterator[str]:
    for other in _OTHERS:
        rank, size = environ.get(other.rank, ""), environ.get(other.size, "")
        if not (is_number(rank) and is_number(size) and int(rank) < int(size) and int(size) > 1):
            continue
        found = f"{other.rank}={rank} and {other.size}={size}"
        if environ.get(other.mark):
            raise ConfigError(
                f"{found} (and {other.mark}): {other.name} has started this process as one of {size}, but tfcollective "
                f"does not take ranks from {other.name}. Start the job with tfcollective run -np {size}; {ADVICE}"
            )
        yield (
            f"{found}: if {other.name} has started this process as one of {size}, each of them trains alone as rank 0: "
            f"start the job with tfcollective run -np {size}; {ADVICE}"
        )
