"""Jobs on Kubernetes: manifests of every common kind, and a launcher that applies and follows one."""

from __future__ import annotations

from tfcollective_launchers.kubernetes.launcher import KubernetesLauncher

__all__ = ["KubernetesLauncher"]
