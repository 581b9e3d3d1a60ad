"""Processes that an MPI launcher has started: Open MPI, MVAPICH2, and those that speak PMI (MPICH, Intel MPI) or PMIx.

They give ranks but no addresses. The ranks of one node meet on the loopback interface; those of several nodes at
TFCOLLECTIVE_RENDEZVOUS.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from tfcollective._base.errors import ConfigError
from tfcollective._base.settings import variable
from tfcollective._control.identity.by_rank import STEP_SIZE, claim_by_rank, whole_number
from tfcollective._control.identity.model import Claim, Facts, Source

_LOOPBACK = "127.0.0.1"
# Where the launchers name the job: any of them tells jobs apart.
_JOB_NAMES = (
    "PMIX_NAMESPACE",
    "OMPI_MCA_ess_base_jobid",
    "OMPI_MCA_orte_ess_jobid",
    "PMI_JOBID",
    "HYDRA_JOBID",
    "MPIRUN_ID",
)
# What starts the ranks of one node, one process for all of them.
_STARTERS = (
    *("mpirun", "mpiexec", "mpiexec.hydra", "mpirun_rsh", "mpispawn", "orterun", "orted", "prterun", "prted"),
    *("hydra_pmi_proxy", "hydra_bstrap_proxy", "pmi_proxy"),
)


@dataclass(frozen=True)
class _Family:
    """The variables of one kind of launcher."""

    rank: str
    size: str
    local_size: str


_LOCAL_RANK = "OMPI_COMM_WORLD_LOCAL_RANK"
_FAMILIES = (
    _Family("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_SIZE"),
    _Family("MV2_COMM_WORLD_RANK", "MV2_COMM_WORLD_SIZE", "MV2_COMM_WORLD_LOCAL_SIZE"),
    _Family("PMI_RANK", "PMI_SIZE", "MPI_LOCALNRANKS"),
    _Family("PMIX_RANK", variable("size"), ""),
)


def open_mpi_place(environ: Mapping[str, str]) -> tuple[int, int, int]:
    """Reads the rank, the local rank and the number of local ranks from Open MPI's variables. Raises ConfigError."""
    family = _FAMILIES[0]
    if family.rank not in environ:
        raise ConfigError(f"{family.rank} is not set: Open MPI's mpirun has not started this process")
    ranks = (whole_number(environ, family.rank), whole_number(environ, _LOCAL_RANK))
    return (*ranks, whole_number(environ, family.local_size, 1))


def _family(facts: Facts) -> _Family | None:
    for family in _FAMILIES:
        if family.rank in facts.environ and not _is_slurms(family, facts):
            return family
    return None


def _is_slurms(family: _Family, facts: Facts) -> bool:
    """True if srun has set the PMI variables: SLURM's own variables then say more about the job."""
    steps = facts.environ.get(STEP_SIZE)
    return (
        steps is not None
        and family.rank in ("PMI_RANK", "PMIX_RANK")
        and facts.environ.get(family.size) in (None, steps)
    )


def _is_present(facts: Facts) -> bool:
    return _family(facts) is not None


def _parse(facts: Facts) -> Claim:
    family = _family(facts)
    assert family is not None
    if family.size not in facts.environ:
        raise ConfigError(f"{family.rank} is set, but {family.size} does not say how many ranks there are")
    rank, size = whole_number(facts.environ, family.rank), whole_number(facts.environ, family.size, 1)
    one_node = facts.environ.get(family.local_size) == str(size)
    name = _job_name(facts, one_node=one_node) if size > 1 else ""
    hosts = (_LOOPBACK,) if one_node else ()
    return claim_by_rank(facts, rank, size, f"mpi-{name}", host=_LOOPBACK if one_node else None, hosts=hosts)


def _job_name(facts: Facts, *, one_node: bool) -> str:
    """Returns a name that no other job of this time has. Raises ConfigError if jobs could meet each other.

    MPICH gives its jobs no name. On one node the process that has started all ranks stands for it; where the ranks of
    several nodes meet, the user has said so.
    """
    named = next((facts.environ[one] for one in _JOB_NAMES if facts.environ.get(one)), None)
    if named is not None or facts.settings.rendezvous is not None or facts.settings.job_id is not None:
        return named or facts.settings.job_id or ""
    started_by = facts.ancestor(_STARTERS) if one_node else ""
    if started_by is None:
        raise ConfigError(
            f"nothing tells this MPI job from others on this node: none of {', '.join(_JOB_NAMES)} is set, and no "
            f"mpirun is among the parents of this process. Set {variable('job_id')} to a text that is the same on all "
            "ranks of this job and on no others"
        )
    return started_by


SOURCE = Source("mpi", ", ".join(family.rank for family in _FAMILIES), _is_present, _parse)
