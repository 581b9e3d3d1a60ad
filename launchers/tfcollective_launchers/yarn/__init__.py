"""Jobs on Hadoop YARN, through skein; the extra ``yarn`` installs what that takes."""

from __future__ import annotations

from tfcollective_launchers.yarn.launcher import YarnLauncher

__all__ = ["YarnLauncher"]
