"""What to run: values."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from tfcollective.errors import ConfigError

__all__ = ["TRANSPORTS", "FunctionCall", "JobSpec"]

TRANSPORTS = ("auto", "tcp")


@dataclass(frozen=True)
class FunctionCall:
    """A function to call on every rank.

    Attributes:
        payload: function, arguments and keyword arguments, pickled.
        sys_path: where to look for the modules that the pickled objects name.
    """

    payload: bytes = field(repr=False)
    sys_path: tuple[str, ...]


@dataclass(frozen=True)
class JobSpec:
    """One job.

    Attributes:
        command: the command that every rank runs.
        num_proc: the number of ranks.
        env: additions to the ranks' environment.
        start_timeout: how long (s) the ranks may wait for each other in ``init()``.
        op_timeout: how long (s) a collective may take.
        stall_warning: when (s) to warn of a slow collective; 0: never.
        transport: ``auto`` or ``tcp``.
        log_dir: where to keep every rank's output, or None.
        prefix: whether lines of output start with the rank.
        log_level: what the ranks and the agent log.
        cwd: where the ranks run; None: here.
        call: a function to call instead of ``command``'s own work, or None.
    """

    command: tuple[str, ...]
    num_proc: int
    env: Mapping[str, str] = field(default_factory=dict)
    start_timeout: float = 120.0
    op_timeout: float = 300.0
    stall_warning: float = 60.0
    transport: str = "auto"
    log_dir: str | None = None
    prefix: bool = True
    log_level: str = "warning"
    cwd: str | None = None
    call: FunctionCall | None = None

    def __post_init__(self) -> None:
        if self.num_proc < 1:
            raise ConfigError(f"the number of processes is 1 or more, not {self.num_proc}")
        if not self.command:
            raise ConfigError("there is no command to run")
        if self.start_timeout <= 0 or self.op_timeout <= 0 or self.stall_warning < 0:
            raise ConfigError("timeouts are above 0; the stall warning is 0 or more")
        if self.transport not in TRANSPORTS:
            raise ConfigError(f"the transport is one of {', '.join(TRANSPORTS)}, not {self.transport!r}")
