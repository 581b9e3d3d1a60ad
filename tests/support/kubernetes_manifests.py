"""Manifests of the shapes that jobs have on Kubernetes, small enough to be read."""

import copy

KEY = "00112233445566778899aabbccddeeff00112233445566778899aabbccddeeff"
PORT = 29477
_SHM = {"name": "shm", "emptyDir": {"medium": "Memory", "sizeLimit": "1Gi"}}
IGNORE_DISRUPTION = {"action": "Ignore", "onPodConditions": [{"type": "DisruptionTarget", "status": "True"}]}


def secret():
    return {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "train-key"}, "stringData": {"key": KEY}}


def service():
    """Names for all pods of the job, from the beginning."""
    spec = {"clusterIP": "None", "publishNotReadyAddresses": True, "selector": {"app.kubernetes.io/part-of": "train"}}
    return {"apiVersion": "v1", "kind": "Service", "metadata": {"name": "train"}, "spec": spec}


def key_by_env():
    return [{"name": "TFCOLLECTIVE_KEY", "valueFrom": {"secretKeyRef": {"name": "train-key", "key": "key"}}}]


def job(name, command, env=(), pod=None, **spec):
    """A Job whose pods run one container, with a folder that all share under /shared."""
    variables = [one if isinstance(one, dict) else {"name": one[0], "value": one[1]} for one in env]
    container = {
        "name": "main", "image": "example", "command": command, "workingDir": "/app", "env": variables,
        "volumeMounts": [{"name": "shm", "mountPath": "/dev/shm"}, {"name": "shared", "mountPath": "/shared"}],
    }  # fmt: skip
    template = {
        "restartPolicy": "Never", "subdomain": "train", "terminationGracePeriodSeconds": 60, "containers": [container],
        "volumes": [copy.deepcopy(_SHM), {"name": "shared", "persistentVolumeClaim": {"claimName": "shared"}}],
        **(pod or {}),
    }  # fmt: skip
    labels = {"app.kubernetes.io/part-of": "train"}
    spec = {"template": {"metadata": {"labels": labels}, "spec": template}, **spec}
    return {"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": name}, "spec": spec}


def joint(count=2, program="ranks.py", env=(), key=None, **options):
    """Every pod of an Indexed Job is a rank; pod 0 starts the coordinator."""
    variables = [
        ("TFCOLLECTIVE_SIZE", str(count)), ("TFCOLLECTIVE_RENDEZVOUS", f"train-0.train:{PORT}"),
        ("TFCOLLECTIVE_START_TIMEOUT", "600"), *(key_by_env() if key is None else key), *env,
    ]  # fmt: skip
    indexed = {"completionMode": "Indexed", "completions": count, "parallelism": count}
    return job("train", ["python", program], variables, **{**indexed, "podReplacementPolicy": "Failed", **options})


def launcher(*arguments, env=(), pod=None, **options):
    """The pod of `tfcollective run --wait-for-agents`."""
    command = ["tfcollective", "run", "--port", str(PORT), "--start-timeout", "600", *arguments]
    place = {"hostname": "launcher", **(pod or {})}
    return job("train-launcher", command, [*key_by_env(), *env], pod=place, backoffLimit=0, **options)


def agents(count, *arguments, env=(), **options):
    """An Indexed Job of agents that join the launcher."""
    name = [{"name": "POD_NAME", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}}]
    command = ["tfcollective", "agent", "--join", f"launcher.train:{PORT}", "--name", "$(POD_NAME)"]
    command += ["--start-timeout", "600", *arguments]
    indexed = {"completionMode": "Indexed", "completions": count, "parallelism": count, "backoffLimitPerIndex": 3}
    policy = {"podFailurePolicy": {"rules": [IGNORE_DISRUPTION]}}
    return job("train-agents", command, [*name, *key_by_env(), *env], **{**indexed, **policy, **options})
