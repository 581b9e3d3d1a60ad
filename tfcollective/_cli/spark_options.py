"""The options of ``tfcollective run`` that Spark takes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tfcollective._cli.cluster_options import ALLOCATION_TIMEOUT, JOB_NAME
from tfcollective._cli.groups import GroupedOption, option
from tfcollective._cli.values import assignments

SPARK_OPTIONS: tuple[GroupedOption, ...] = (
    JOB_NAME,
    option(
        "--master",
        metavar="URL",
        help="Where Spark runs: spark://HOST:PORT, yarn, k8s://... or local. [as spark-submit says]",
    ),
    option("--conf", multiple=True, metavar="NAME=VALUE", help="Property of the application; may be repeated."),
    ALLOCATION_TIMEOUT,
)


def spark_platform(options: Mapping[str, Any]) -> dict[str, Any]:
    """The platform's settings that the options mean."""
    return {
        "master": options["master"],
        "conf": assignments(options, "conf"),
        "name": options["job_name"],
        "python": options["remote_python"],
        "allocation_timeout": options["allocation_timeout"],
    }
