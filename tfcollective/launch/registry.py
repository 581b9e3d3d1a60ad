"""Launchers by name."""

from __future__ import annotations

from importlib.metadata import EntryPoint, entry_points

from tfcollective.errors import ConfigError, LaunchError
from tfcollective.launch.launcher import JobManager, Launcher

__all__ = ["GROUP", "find_launcher", "find_manager", "known_launchers"]

GROUP = "tfcollective.launchers"
_BUILT_IN = {
    "agents": "tfcollective.launch.providers.join:JoinedLauncher",
    "local": "tfcollective.launch.providers.local:LocalLauncher",
}


def find_launcher(name: str) -> Launcher:
    """The launcher called ``name``; ConfigError lists the known ones, LaunchError says why it cannot be loaded."""
    known = _known()
    point = known.get(name)
    if point is None:
        raise ConfigError(f"there is no launcher {name!r}; known: {', '.join(sorted(known))}")
    try:
        launcher = point.load()()
    except (ImportError, AttributeError) as error:
        raise LaunchError(f"the launcher {name!r} cannot be loaded: {error}") from error
    if not isinstance(launcher, Launcher):
        raise LaunchError(f"the launcher {name!r} ({point.value}) is no tfcollective launcher")
    return launcher


def find_manager(job: str) -> JobManager:
    """The launcher that has a job of this id; ConfigError when there is none."""
    for name in sorted(_known()):
        launcher = find_launcher(name)
        if isinstance(launcher, JobManager) and launcher.owns(job):
            return launcher
    raise ConfigError(
        f"{job!r} is no job of a platform that keeps jobs; YARN's are called application_NUMBER_NUMBER, and "
        "`tfcollective status` alone shows those that were started on this machine"
    )


def known_launchers() -> tuple[str, ...]:
    """The names that :func:`find_launcher` knows."""
    return tuple(sorted(_known()))


def _known() -> dict[str, EntryPoint]:
    known = {point.name: point for point in entry_points(group=GROUP)}
    known.update({built_in: EntryPoint(built_in, target, GROUP) for built_in, target in _BUILT_IN.items()})
    return known
