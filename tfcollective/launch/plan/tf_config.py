"""TF_CONFIG for scripts that use ``tf.distribute`` under our launcher.

Each rank's TensorFlow server listens on the port that stands there for it (``machine/ports``).
"""

from __future__ import annotations

import json
from collections.abc import Mapping

from tfcollective.tasks import TaskKey
from tfcollective.topology import Endpoint

__all__ = ["tf_config"]


def tf_config(task: TaskKey, endpoints: Mapping[TaskKey, Endpoint]) -> str:
    """The value for ``task``: the trainers among these tasks, given in rank order, and it.

    Other auxiliary tasks are left out, as TensorFlow's server would wait for them.
    """
    cluster: dict[str, list[str]] = {}
    for member, endpoint in endpoints.items():
        if member.is_trainer or member == task:
            cluster.setdefault(member.type, []).append(str(endpoint))
    return json.dumps({"cluster": cluster, "task": {"type": task.type, "index": task.index}})
