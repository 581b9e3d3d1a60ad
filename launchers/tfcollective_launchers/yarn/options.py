"""What a job on YARN can be given besides what every job has: checked values."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from tfcollective.launcher import TIMING, ConfigError, check_timeout, memory_in_mib, platform_options

_MOUNT = re.compile(r"/[^:,]*:/[^:,]*:(ro|rw)")
_ACL_LISTS = ("view_users", "view_groups", "modify_users", "modify_groups", "ui_users")


@dataclass(frozen=True)
class YarnOptions:
    """The platform's settings.

    Attributes:
        queue: the queue to submit to.
        name: what the application is called.
        python: an interpreter that is there on every node, with tfcollective and skein; None: see ``archive``.
        archive: a packed environment, here or on a file system that YARN knows: ``.pex``, ``.pex.zip``, ``.zip`` or
            ``.tar.gz``; a mapping gives nodes of different labels different ones. None and no ``python``: the running
            environment is packed by cluster-pack.
        pack: more arguments of ``cluster_pack.upload_env``, for example ``{"additional_indexes": ["/here/wheels"]}``.
        files: more files for every container: what they are called there, and where they are. A directory is packed.
        acls: who may do what, as skein's ACLs or a mapping of its fields; None: the owner alone.
        file_systems: further file systems that the job needs tokens for; a job may name one, or a list.
        pre_script_hook: lines of bash that run in every container before Python.
        allocation_timeout: how long (s) to wait until YARN has given all containers.
        detach: whether to return as soon as the job runs; it does not end with the submitter then.
        master_memory: of the coordinator's container: MiB, or a text with a unit.
        master_vcores: of the coordinator's container.
        master_attempts: how often YARN starts the application's master at most; the cluster may allow less
            (``yarn.resourcemanager.am.max-attempts``, 2). None: twice for an elastic job, once for others.
        docker_image: the image in which the nodes' Docker runtime runs all containers of the job; it has to have what
            ``python`` names, or runs what is packed. None: no Docker.
        docker_mounts: what those containers see of their node: ``SOURCE:TARGET:ro`` or ``:rw``; a job may name one, or
            a list.
        docker_network: the network of those containers; None: the nodes' default.
        skein_client: a client of skein's to use; None: one of our own.
    """

    queue: str = "default"
    name: str = "tfcollective"
    python: str | None = None
    archive: str | Mapping[str, str] | None = None
    pack: Mapping[str, Any] = field(default_factory=dict)
    files: Mapping[str, str] = field(default_factory=dict)
    acls: Any = None
    file_systems: tuple[str, ...] = ()
    pre_script_hook: str = ""
    allocation_timeout: float = TIMING.allocation
    detach: bool = False
    master_memory: int | str = "1 GiB"
    master_vcores: int = 1
    master_attempts: int | None = None
    docker_image: str | None = None
    docker_mounts: tuple[str, ...] = ()
    docker_network: str | None = None
    skein_client: Any = None

    @classmethod
    def from_platform(cls, platform: Mapping[str, Any]) -> YarnOptions:
        """Reads what a job says; ConfigError names what cannot be used."""
        lists = {name: _texts(name, platform.get(name) or ()) for name in ("file_systems", "docker_mounts")}
        return platform_options(cls, {**platform, **lists}, "yarn")

    def __post_init__(self) -> None:
        for name in ("queue", "name"):
            if not isinstance(getattr(self, name), str) or not getattr(self, name):
                raise ConfigError(f"yarn: {name}: expected a string, got {getattr(self, name)!r}")
        if self.python is not None and self.archive is not None:
            raise ConfigError("yarn: give python, a path on the nodes, or archive, a packed environment, not both")
        if self.pack and (self.python is not None or self.archive is not None):
            raise ConfigError("yarn: pack: nothing is packed where python or archive is given")
        check_timeout("yarn: allocation_timeout", self.allocation_timeout)
        for target, source in self.files.items():
            if not isinstance(target, str) or not isinstance(source, str) or not target or "/" in target:
                raise ConfigError(
                    f"yarn: files: expected a name without directories and a path, got {target!r}: {source!r}"
                )
        attempts = self.master_attempts
        if attempts is not None and (isinstance(attempts, bool) or not isinstance(attempts, int) or attempts < 1):
            raise ConfigError(f"yarn: master_attempts: expected 1 or more, got {attempts!r}")
        memory_in_mib(self.master_memory)
        self.acl_fields()
        self._check_docker()

    def _check_docker(self) -> None:
        for name in ("docker_image", "docker_network"):
            value = getattr(self, name)
            if value is not None and not (isinstance(value, str) and value):
                raise ConfigError(f"yarn: {name}: expected a string, got {value!r}")
        if self.docker_image is None and (self.docker_mounts or self.docker_network):
            raise ConfigError("yarn: docker_mounts and docker_network need docker_image, the image to run in")
        for mount in self.docker_mounts:
            if not isinstance(mount, str) or not _MOUNT.fullmatch(mount):
                raise ConfigError(f"yarn: docker_mounts: expected SOURCE:TARGET:ro or SOURCE:TARGET:rw, got {mount!r}")

    def attempts(self, *, elastic: bool) -> int:
        """How often YARN may start the master of a job."""
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
        given = self.acls if isinstance(self.acls, Mapping) or self.acls is None else self.acls.to_dict()
        fields_ = {"enable": True, **dict.fromkeys(_ACL_LISTS, ()), **(given or {})}
        unknown = sorted(set(fields_) - {"enable", *_ACL_LISTS})
        if unknown:
            raise ConfigError(f"yarn: acls: unknown field {unknown[0]!r}: expected enable, {', '.join(_ACL_LISTS)}")
        return {name: bool(value) if name == "enable" else list(value) for name, value in fields_.items()}


def _texts(name: str, given: Any) -> tuple[str, ...]:
    """One text, or several."""
    several = (given,) if isinstance(given, str) else given
    if isinstance(several, Mapping) or not isinstance(several, Iterable):
        raise ConfigError(f"yarn: {name}: expected a string or a list of strings, got {given!r}")
    found = tuple(several)
    wrong = [one for one in found if not isinstance(one, str) or not one]
    if wrong:
        raise ConfigError(f"yarn: {name}: expected strings, got {wrong[0]!r}")
    return found
