"""The kinds of manifests: each a function from a :class:`Wanted` to plain objects, in the order in which they are
applied."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from tfcollective_launchers.kubernetes.kinds.common import Wanted
from tfcollective_launchers.kubernetes.kinds.job import job_objects
from tfcollective_launchers.kubernetes.kinds.jobset import jobset_objects
from tfcollective_launchers.kubernetes.kinds.mpijob import mpijob_objects
from tfcollective_launchers.kubernetes.kinds.tfjob import tfjob_objects
from tfcollective_launchers.kubernetes.kinds.trainjob import trainjob_objects

__all__ = ["BUILDERS", "Wanted"]

BUILDERS: Mapping[str, Callable[[Wanted], list[dict[str, Any]]]] = {
    "job": job_objects,
    "jobset": jobset_objects,
    "trainjob": trainjob_objects,
    "tfjob": tfjob_objects,
    "mpijob": mpijob_objects,
}
