"""Ranks that Open MPI's ``mpirun`` starts, each under an agent of its own."""

from __future__ import annotations

from tfcollective_launchers.mpi.launcher import MpiLauncher

__all__ = ["MpiLauncher"]
