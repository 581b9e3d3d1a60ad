"""Jobs on Apache Spark, with the names of ``horovod.spark``, and DataFrames as their data.

In the driver: :func:`run`, :func:`run_elastic`, :func:`feed`, :func:`predict`; on a rank: :func:`dataset`. The extra
``spark`` installs what that takes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tfcollective_launchers.spark.api import feed, predict, run, run_elastic

    from tfcollective.tensorflow._spark_rows import dataset

__all__ = ["dataset", "feed", "predict", "run", "run_elastic"]


def __getattr__(name: str) -> Any:
    if name == "dataset":
        from tfcollective.tensorflow._spark_rows import dataset

        return dataset
    if name in __all__:
        from tfcollective_launchers.spark import api

        return getattr(api, name)
    raise AttributeError(f"module 'tfcollective.spark' has no attribute {name!r}")
