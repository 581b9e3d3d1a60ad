"""The options of ``tfcollective run`` that YARN takes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tfcollective._cli.cluster_options import ALLOCATION_TIMEOUT, DETACH, JOB_NAME, QUEUE
from tfcollective._cli.groups import GroupedOption, option
from tfcollective._cli.values import assignments

YARN_OPTIONS: tuple[GroupedOption, ...] = (
    QUEUE,
    JOB_NAME,
    option("--archive", metavar="F", help="Packed environment to send. [packs this one]"),
    option(
        "--package-index",
        multiple=True,
        metavar="DIR|URL",
        help="Index, or directory of wheels, for packing the environment; may be repeated.",
    ),
    option("--ship", multiple=True, metavar="NAME=PATH", help="Send a file or directory along; may be repeated."),
    option("--pre-script", metavar="BASH", help="Commands that run in every container before Python."),
    option("--docker-image", metavar="IMAGE", help="Image in which the nodes' Docker runs the containers. [no Docker]"),
    option(
        "--docker-mount",
        multiple=True,
        metavar="SOURCE:TARGET:ro|rw",
        help="Directory of the nodes that these containers see; may be repeated.",
    ),
    option("--docker-network", metavar="NAME", help="Network of these containers. [the nodes' default]"),
    ALLOCATION_TIMEOUT,
    DETACH,
)


def yarn_platform(options: Mapping[str, Any]) -> dict[str, Any]:
    """The platform's settings that the options mean."""
    return {
        "queue": options["queue"],
        "name": options["job_name"],
        "python": options["remote_python"],
        "archive": options["archive"],
        "pack": packing(options["package_index"]),
        "files": assignments(options, "ship", "PATH", needed=True),
        "pre_script_hook": options["pre_script"],
        "allocation_timeout": options["allocation_timeout"],
        "detach": options["detach"],
        "docker_image": options["docker_image"],
        "docker_mounts": options["docker_mount"],
        "docker_network": options["docker_network"],
    }


def packing(indexes: Sequence[str]) -> dict[str, Any] | None:
    """The arguments of cluster-pack for packages from further indexes or from directories of wheels."""
    if not indexes:
        return None
    return {"additional_indexes": [str(Path(one).absolute()) if Path(one).is_dir() else one for one in indexes]}
