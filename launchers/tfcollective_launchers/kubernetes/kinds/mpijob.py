"""``--kind mpijob``: an MPIJob of Kubeflow's MPI operator (v2beta1). Its launcher starts agents on the workers by ssh,
which the operator has set up; the job key goes the same way, so there is no Secret."""

from __future__ import annotations

from dataclasses import replace

from tfcollective.launcher import ConfigError, job_text
from tfcollective_launchers.kubernetes.kinds.common import (
    LAUNCHER,
    LAUNCHER_RESOURCES,
    Object,
    Wanted,
    container_of,
    limits_of,
    metadata_of,
    pod_template,
    suspended,
    variables,
)
from tfcollective_launchers.kubernetes.names import check_host_names

_HOSTS = "/etc/mpi/hostfile"
_DISCOVERY = "/etc/mpi/discover_hosts.sh"  # the operator keeps it up to date
# The workers' keys are as new as they are, and the network of the pods is the operator's.
_SSH = ("-o", "StrictHostKeyChecking=no", "-o", "UserKnownHostsFile=/dev/null", "-o", "LogLevel=ERROR")
_SSHD = ("/usr/sbin/sshd", "-De")
_HOME = "/home/mpiuser"  # of the operator's base images, for sshd without root


def mpijob_objects(wanted: Wanted) -> list[Object]:
    """See :data:`tfcollective_launchers.kubernetes.kinds.BUILDERS`."""
    if wanted.options.env_from:
        raise ConfigError("--env-from: sshd gives the ranks of an MPIJob none of these variables: use --env")
    if wanted.options.key_secret is not None:
        raise ConfigError("--key-secret: an MPIJob has none: the key goes to the workers by ssh")
    check_host_names(wanted.name, f"-worker-{wanted.pods - 1}")
    root = wanted.options.run_as.user == 0
    spec = {
        "slotsPerWorker": wanted.options.procs_per_pod,
        **({} if root else {"sshAuthMountPath": f"{_HOME}/.ssh"}),
        "launcherCreationPolicy": "WaitForWorkersReady",
        "runPolicy": {
            **suspended(wanted),
            "cleanPodPolicy": "Running",
            "backoffLimit": 0,  # the launcher starts the ranks again
            **limits_of(wanted),
        },
        "mpiReplicaSpecs": {
            "Launcher": {"replicas": 1, "restartPolicy": "Never", "template": _launcher(wanted)},
            "Worker": {"replicas": wanted.pods, "restartPolicy": "OnFailure", "template": _worker(wanted, root)},
        },
    }
    return [
        {
            "apiVersion": "kubeflow.org/v2beta1",
            "kind": "MPIJob",
            "metadata": metadata_of(wanted, wanted.name, queued=True),
            "spec": spec,
        }
    ]


def _launcher(wanted: Wanted) -> Object:
    spec = replace(wanted.spec, platform={"options": _SSH})
    hosts: tuple[str, ...] = ("--hostfile", _HOSTS)
    if spec.bounds is not None:
        spec, hosts = replace(spec, discovery=(_DISCOVERY,), slots=wanted.options.procs_per_pod), ()
    command = ("tfcollective", "job", "--launcher", "ssh", *hosts, job_text(spec))
    template = pod_template(
        wanted,
        LAUNCHER,
        command,
        variables({"PYTHONUNBUFFERED": "1"}),
        resources=LAUNCHER_RESOURCES,
        keyed=False,
        spec={"restartPolicy": None},
    )
    return _with_capabilities(template)


def _worker(wanted: Wanted, root: bool) -> Object:
    command = _SSHD if root else (*_SSHD, "-f", f"{_HOME}/.sshd_config")
    return _with_capabilities(pod_template(wanted, "worker", command, [], keyed=False, spec={"restartPolicy": None}))


def _with_capabilities(template: Object) -> Object:
    """The operator's images give their sshd a capability, without which it does not start."""
    del container_of(template)["securityContext"]
    return template
