"""Jobs on Apache Spark: each rank's agent runs in a task of the application; the extra ``spark`` installs what that
takes.

The names are resolved when they are used: the agents import this package, too, and need little of it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tfcollective_launchers.spark.api import feed, predict, run, run_elastic
    from tfcollective_launchers.spark.launcher import SparkLauncher

__all__ = ["SparkLauncher", "feed", "predict", "run", "run_elastic"]


def __getattr__(name: str) -> Any:
    if name == "SparkLauncher":
        from tfcollective_launchers.spark.launcher import SparkLauncher

        return SparkLauncher
    if name in __all__:
        from tfcollective_launchers.spark import api

        return getattr(api, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
