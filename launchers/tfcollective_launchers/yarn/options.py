"""What a job on YARN can be given besides what every job has: checked values."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any

from tfcollective.errors import ConfigError
from tfcollective.task_specs import memory_in_mib
from tfcollective.timing import TIMING

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
        file_systems: further file systems that the job needs tokens for.
        pre_script_hook: lines of bash that run in every container before Python.
        allocation_timeout: how long (s) to wait until YARN has given all containers.
        detach: whether to return as soon as the job runs; it does not end with the submitter then.
        master_memory: of the coordinator's container: MiB, or a text with a unit.
        master_vcores: of the coordinator's container.
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
    skein_client: Any = None

    @classmethod
    def from_platform(cls, platform: Mapping[str, Any]) -> YarnOptions:
        """Reads what a job says; ConfigError names what cannot be used."""
        known = {one.name for one in fields(cls)}
        unknown = sorted(set(platform) - known)
        if unknown:
            raise ConfigError(f"the launcher 'yarn' has no option {unknown[0]!r}; known: {', '.join(sorted(known))}")
        given = {name: value for name, value in platform.items() if value is not None}
        return cls(**{**given, "file_systems": tuple(given.get("file_systems", ()))})

    def __post_init__(self) -> None:
        for name in ("queue", "name"):
            if not isinstance(getattr(self, name), str) or not getattr(self, name):
                raise ConfigError(f"yarn: {name}: expected a string, got {getattr(self, name)!r}")
        if self.python is not None and self.archive is not None:
            raise ConfigError("yarn: give python, a path on the nodes, or archive, a packed environment, not both")
        if self.pack and (self.python is not None or self.archive is not None):
            raise ConfigError("yarn: pack: nothing is packed where python or archive is given")
        seconds = self.allocation_timeout
        if isinstance(seconds, bool) or not isinstance(seconds, int | float) or not 0 < seconds < math.inf:
            raise ConfigError(f"yarn: allocation_timeout: expected a number of seconds above 0, got {seconds!r}")
        for target, source in self.files.items():
            if not isinstance(target, str) or not isinstance(source, str) or not target or "/" in target:
                raise ConfigError(
                    f"yarn: files: expected a name without directories and a path, got {target!r}: {source!r}"
                )
        memory_in_mib(self.master_memory)
        self.acl_fields()

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
