"""What the sources have in common that give a rank, a size, and perhaps a place to meet. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from tfcollective.errors import ConfigError
from tfcollective.identity.addresses import job_port
from tfcollective.identity.model import Claim, Facts
from tfcollective.settings import variable
from tfcollective.tasks import WORKER, TaskKey, is_number, workers
from tfcollective.topology import Endpoint

__all__ = ["claim_by_rank", "whole_number"]


def whole_number(environ: Mapping[str, str], name: str, least: int = 0) -> int:
    """The number in a variable; ConfigError that names the variable."""
    text = environ.get(name, "").strip()
    if not is_number(text) or int(text) < least:
        raise ConfigError(f"{name}={text[:80]!r}: a whole number of {least} or more is needed")
    return int(text)


def claim_by_rank(
    facts: Facts,
    rank: int,
    size: int,
    name: str,
    *,
    host: str | None,
    port: int | None = None,
    hosts: Sequence[str] = (),
) -> Claim:
    """A world of workers whose indices are their ranks.

    ``host`` is rank 0's, where it is known; ``port`` a port there that all ranks know (None: made of ``name``). The
    setting ``rendezvous`` goes before both. Raises ConfigError.
    """
    given = facts.settings.size
    if given is not None and given != size:
        raise ConfigError(f"{variable('size')}={given}, but this process was started as one of {size}")
    if rank >= size:
        raise ConfigError(f"the rank {rank} is not below the size {size}")
    rendezvous = None
    if size > 1:
        rendezvous = facts.settings.rendezvous
        if rendezvous is None and host is None:
            raise ConfigError(
                f"nothing says where rank 0 is: set {variable('rendezvous')}=HOST:PORT on all ranks to a free port of "
                "its host"
            )
        if rendezvous is None and host is not None:
            rendezvous = Endpoint.parse(str(Endpoint(host, port or job_port(name))))  # others have written it
    return Claim(TaskKey(WORKER, rank), workers(size), rendezvous, name, tuple(hosts))
