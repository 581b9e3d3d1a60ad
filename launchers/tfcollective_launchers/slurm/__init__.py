"""SLURM: inside an allocation an agent on each of its nodes, outside one a batch job that does the same."""

from __future__ import annotations

from tfcollective_launchers.slurm.launcher import SlurmLauncher

__all__ = ["SlurmLauncher"]
