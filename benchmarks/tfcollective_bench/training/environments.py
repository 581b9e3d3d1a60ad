"""Finds the Python that runs each runner: environments with TensorFlow for Keras 3, for Keras 2, and with Horovod."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from tfcollective_bench.baselines import environment_folders
from tfcollective_bench.training.options import TrainingOptions
from tfcollective_bench.training.runners import Runner

__all__ = ["Environment", "find_environments", "missing", "packages_of"]

_PROBE_S = 60.0
_OURS = ("aiohttp", "click", "rich", "psutil")
_PACKAGES = ("tensorflow", "tensorflow-cpu", "horovod", "keras", "numpy", *_OURS)
_PROBE = """
import json, sys
from importlib import metadata
found = {}
for name in sys.argv[1:]:
    try:
        found[name] = metadata.version(name)
    except metadata.PackageNotFoundError:
        pass
print(json.dumps(found))
"""
# Folders of environments as `make` and `tools/baselines.sh` name them.
_USUAL = {"keras3": ("tf221",), "keras2": ("tf215",), "horovod": ("horovod",)}
_HINTS = {
    "keras3": "an environment with TensorFlow 2.16 or newer: pip install 'tfcollective[tf]', or --keras3-python",
    "keras2": "an environment with TensorFlow 2.15 and tfcollective: make .venv/tf215.installed, or --keras2-python",
    "horovod": "run tools/baselines.sh horovod, or name its interpreter with --horovod-python",
}


@dataclass(frozen=True)
class Environment:
    """An interpreter and the versions of what matters in it."""

    python: str
    packages: Mapping[str, str]

    def serves(self, label: str) -> bool:
        """True if the environment is of the kind ``label`` (keras3, keras2, horovod)."""
        version = self.packages.get("tensorflow") or self.packages.get("tensorflow-cpu")
        if version is None:
            return False
        if label == "horovod":
            return "horovod" in self.packages
        major, minor = (int(part) for part in version.split(".")[:2])
        return ((major, minor) >= (2, 16)) == (label == "keras3") and all(name in self.packages for name in _OURS)


def find_environments(options: TrainingOptions) -> dict[str, Environment]:
    """The environments that are there, by label. What an option names is taken as it is."""
    given = {"keras3": options.keras3_python, "keras2": options.keras2_python, "horovod": options.horovod_python}
    found = {}
    for label, python in given.items():
        for candidate in (python,) if python else _candidates(label, options.baselines):
            environment = Environment(candidate, packages_of(candidate))
            if python or environment.serves(label):
                found[label] = environment
                break
    return found


def missing(runner: Runner, found: Mapping[str, Environment]) -> str:
    """Returns how to install what the runner needs; empty if nothing is missing."""
    environment = found.get(runner.environment)
    if environment is None:
        return _HINTS[runner.environment]
    if not environment.serves(runner.environment):
        return f"{environment.python} is not {_HINTS[runner.environment].partition(':')[0]}"
    return ""


def packages_of(python: str, names: Sequence[str] = _PACKAGES) -> dict[str, str]:
    """Package -> version in another interpreter's environment; nothing if it does not run."""
    try:
        done = subprocess.run(
            [python, "-c", _PROBE, *names],
            capture_output=True,
            text=True,
            timeout=_PROBE_S,
            check=False,
            stdin=subprocess.DEVNULL,
        )
        return dict(json.loads(done.stdout)) if done.returncode == 0 else {}
    except (OSError, ValueError, subprocess.TimeoutExpired):
        return {}


def _candidates(label: str, baselines: str) -> Iterator[str]:
    yield sys.executable
    for folder in environment_folders(baselines):
        for name in _USUAL[label]:
            python = folder / name / "bin" / "python"
            if python.exists():
                yield str(python)
