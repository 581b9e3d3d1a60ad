"""The options of jobs on Spark, besides those of every job."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

from tfcollective.launcher import (
    LINE,
    TIMING,
    VARIABLES,
    Options,
    count,
    option,
    shared_options,
)

own = partial(option, "Spark")


@dataclass(frozen=True)
class SparkOptions(Options):
    """The options for a new application, and Python values for an existing one.

    Attributes:
        spark: the SparkSession or SparkContext whose executors run the job; None: the active one, else a new one.
        data: the :class:`~tfcollective_launchers.spark.rows.Source` whose rows the ranks read; None: they read none.
        stdout: where to show what ranks print; None: the process's own.
        stderr: the same of their stderr.
    """

    master: str | None = own(
        LINE,
        "Where Spark runs: spark://HOST:PORT, yarn, k8s://... or local.",
        "--master",
        metavar="URL",
        default="as spark-submit says",
    )
    conf: Mapping[str, str] = own(
        VARIABLES,
        "Property of the application; may be repeated.",
        "--conf",
        {},
        metavar="NAME=VALUE",
        more="For example `spark.executor.memory=8g`.",
    )
    name: str | None = shared_options.job_name(LINE, value=None)
    python: str | None = shared_options.remote_python(more="It is the executors'; `PYSPARK_PYTHON` comes next.")
    executable: str | None = own(LINE, "What the ranks run.", default="the interpreter of their agent")
    allocation_timeout: float = shared_options.allocation_timeout(value=TIMING.allocation)
    port: int = own(
        count(0, 65535, "the highest port"), "Where the driver listens for agents and ranks.", value=0, default="any"
    )
    spark: Any = None
    data: Any = None
    stdout: Any = None
    stderr: Any = None
