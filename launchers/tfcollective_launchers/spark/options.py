"""The options of jobs on Spark."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from tfcollective.launcher import TIMING, ConfigError, check_timeout, platform_options


@dataclass(frozen=True)
class SparkOptions:
    """The platform's settings.

    Attributes:
        spark: the SparkSession or SparkContext whose executors run the job; None: the active one, else a new one.
        master: where a new one is made: ``spark://HOST:PORT``, ``yarn``, ``local[4]``, ...
        conf: its properties.
        name: what it is called.
        python: the interpreter of its executors; None: ``PYSPARK_PYTHON``, else the path of the running one.
        executable: what the ranks run in place of their agent's interpreter; None: that.
        allocation_timeout: how long (s) Spark may take to start all tasks of the job.
        port: where the driver listens for agents and ranks; 0: any free port.
        data: the :class:`~tfcollective_launchers.spark.rows.Source` whose rows the ranks read; None: they read none.
        stdout: where to show what ranks print; None: the process's own.
        stderr: the same of their stderr.
    """

    spark: Any = None
    master: str | None = None
    conf: Mapping[str, str] = field(default_factory=dict)
    name: str | None = None
    python: str | None = None
    executable: str | None = None
    allocation_timeout: float = TIMING.allocation
    port: int = 0
    data: Any = None
    stdout: Any = None
    stderr: Any = None

    @classmethod
    def from_platform(cls, platform: Mapping[str, Any]) -> SparkOptions:
        """The settings of a job; ConfigError when there are others, or they cannot be used."""
        return platform_options(cls, platform, "spark")

    def __post_init__(self) -> None:
        check_timeout("spark: allocation_timeout", self.allocation_timeout)
        for name, value in self.conf.items():
            if not isinstance(name, str) or not isinstance(value, str):
                raise ConfigError(f"conf: expected texts, got {name!r}: {value!r}")
