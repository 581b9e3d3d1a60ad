"""The options of jobs on YARN, besides those of every job."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from tfcollective.launcher import (
    LINE,
    TEXT,
    TIMING,
    VARIABLES,
    ConfigError,
    Kind,
    Options,
    count,
    line,
    memory_in_mib,
    option,
    shared_options,
)

own = partial(option, "YARN")
_MOUNT = re.compile(r"/[^:,]*:/[^:,]*:(ro|rw)")
_ACL_LISTS = ("view_users", "view_groups", "modify_users", "modify_groups", "ui_users")


def _check_mount(text: str) -> None:
    if not _MOUNT.fullmatch(text):
        raise ConfigError(f"expected SOURCE:TARGET:ro or SOURCE:TARGET:rw, got {text!r}")


def _unfit_files(value: Any) -> str | None:
    for target, source in value.items():
        if not isinstance(target, str) or not isinstance(source, str) or not target or not source or "/" in target:
            return f"expected a name without directories and a path, got {target!r}: {source!r}"
    return None


def _read_pack(given: Any) -> Any:
    """Texts are further indexes, or directories of wheels."""
    if isinstance(given, Mapping) or not isinstance(given, Iterable):
        return given
    indexes = (given,) if isinstance(given, str) else given
    return {"additional_indexes": [str(Path(one).absolute()) if Path(one).is_dir() else one for one in indexes]}


def _unfit_archive(value: Any) -> str | None:
    return None if isinstance(value, str | Mapping) else f"expected a path, or one for each label, got {value!r}"


def _unfit_memory(value: Any) -> str | None:
    try:
        memory_in_mib(value)
    except ConfigError as error:
        return str(error)
    return None


def _acl_fields(given: Any) -> dict[str, Any]:
    said = given if isinstance(given, Mapping) or given is None else given.to_dict()
    return {"enable": True, **dict.fromkeys(_ACL_LISTS, ()), **(said or {})}


def _unfit_acls(value: Any) -> str | None:
    unknown = sorted(set(_acl_fields(value)) - {"enable", *_ACL_LISTS})
    return f"unknown field {unknown[0]!r}: expected enable, {', '.join(_ACL_LISTS)}" if unknown else None


_ARCHIVE, _MEMORY, _ACLS = (
    Kind(lambda given: given, problem, "F") for problem in (_unfit_archive, _unfit_memory, _unfit_acls)
)
_PACK = Kind(
    _read_pack, lambda value: None if isinstance(value, Mapping) else "expected a mapping", "DIR|URL", many=True
)
_FILES = Kind(VARIABLES.read, _unfit_files, "NAME=PATH", many=True)


@dataclass(frozen=True)
class YarnOptions(Options):
    """The options of an application on YARN.

    Attributes:
        skein_client: a client of skein's to use; None: one of our own.
    """

    queue: str = shared_options.queue(LINE, value="default", default="default")
    name: str = shared_options.job_name(LINE)
    python: str | None = shared_options.remote_python(more="It is there on every node, with tfcollective and skein.")
    archive: str | Mapping[str, str] | None = own(
        _ARCHIVE,
        "Packed environment to send.",
        "--archive",
        default="packs this one",
        more="A [file](../howto/yarn.md#the-environment) `.pex`, `.pex.zip`, `.zip` or `.tar.gz`, here or on a file "
        "system that YARN knows. In Python a mapping gives nodes of different labels different ones.",
    )
    pack: Mapping[str, Any] = own(
        _PACK,
        "Index, or directory of wheels, for packing the environment; may be repeated.",
        "--package-index",
        {},
        more="In Python also a mapping: more arguments of `cluster_pack.upload_env`.",
    )
    files: Mapping[str, str] = own(
        _FILES,
        "Send a file or directory along; may be repeated.",
        "--ship",
        {},
        more="Each container has it under the name NAME. The script of `python script.py` is always sent, unless "
        "`--cwd` is given. Modules that it imports, the module of `-m` and other programs are not.",
    )
    acls: Any = own(  # noqa: RUF009  it makes a field
        _ACLS, "Who may do what, as skein's ACLs or a mapping of its fields.", default="the owner alone"
    )
    file_systems: tuple[str, ...] = own(
        line(many=True), "Further file systems that the job needs tokens for, one or a list.", value=()
    )
    pre_script_hook: str = own(
        TEXT, "Commands that run in every container before Python.", "--pre-script", "", metavar="BASH"
    )
    allocation_timeout: float = shared_options.allocation_timeout(value=TIMING.allocation)
    detach: bool = shared_options.detach(more="It cannot be combined with `--max-restarts`.")
    master_memory: int | str = own(
        _MEMORY, "Memory of the coordinator's container, in MiB or as a text with a unit.", value="1 GiB"
    )
    master_vcores: int = own(count(1), "Cores of the coordinator's container.", value=1)
    master_attempts: int | None = own(
        count(1),
        "How often YARN starts the application's master at most.",
        default="2 for an elastic job, 1 for others",
        more="The cluster may allow less, with `yarn.resourcemanager.am.max-attempts`.",
    )
    docker_image: str | None = own(
        LINE,
        "Image in which the nodes' Docker runs the containers.",
        "--docker-image",
        metavar="IMAGE",
        default="no Docker",
        more="It has what `python` names, or runs what is packed: see [In Docker](../howto/yarn.md#in-docker).",
    )
    docker_mounts: tuple[str, ...] = own(
        line(_check_mount, "SOURCE:TARGET:ro|rw", many=True),
        "Directory of the nodes that these containers see; may be repeated.",
        "--docker-mount",
        (),
    )
    docker_network: str | None = own(
        LINE, "Network of these containers.", "--docker-network", metavar="NAME", default="the nodes' default"
    )
    skein_client: Any = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.python is not None and self.archive is not None:
            raise ConfigError("yarn: give python, a path on the nodes, or archive, a packed environment, not both")
        if self.pack and (self.python is not None or self.archive is not None):
            raise ConfigError("yarn: pack: nothing is packed where python or archive is given")
        if self.docker_image is None and (self.docker_mounts or self.docker_network):
            raise ConfigError("yarn: docker_mounts and docker_network need docker_image, the image to run in")

    def attempts(self, *, elastic: bool) -> int:
        """Returns how often YARN may start the master of a job."""
        return (2 if elastic else 1) if self.master_attempts is None else self.master_attempts

    @property
    def runtime_variables(self) -> dict[str, str]:
        """The variables by which a container asks its node for Docker.

        Their names are those of Hadoop's "Launching Applications Using Docker Containers".
        """
        if self.docker_image is None:
            return {}
        prefix = "YARN_CONTAINER_RUNTIME"
        variables = {f"{prefix}_TYPE": "docker", f"{prefix}_DOCKER_IMAGE": self.docker_image}
        if self.docker_mounts:
            variables[f"{prefix}_DOCKER_MOUNTS"] = ",".join(self.docker_mounts)
        if self.docker_network:
            variables[f"{prefix}_DOCKER_CONTAINER_NETWORK"] = self.docker_network
        return variables

    @property
    def master_memory_mib(self) -> int:
        """The memory of the coordinator's container in MiB."""
        return memory_in_mib(self.master_memory)

    def acl_fields(self) -> dict[str, Any]:
        """The access rights as skein writes them: enabled, and the owner alone unless it is said otherwise."""
        given = _acl_fields(self.acls)
        return {name: bool(value) if name == "enable" else list(value) for name, value in given.items()}
