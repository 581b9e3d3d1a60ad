"""Hosts that ssh reaches: an agent on each, started and configured over ssh."""

from __future__ import annotations

from tfcollective_launchers.ssh.launcher import SshLauncher

__all__ = ["SshLauncher"]
