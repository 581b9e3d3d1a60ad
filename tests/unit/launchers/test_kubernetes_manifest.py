"""What `tfcollective manifest` prints: against files that people have read, against the schemas of Kubernetes and of
the custom kinds, and what it refuses."""

import copy
import os
import re
import shlex
import shutil
import subprocess
from pathlib import Path

import pytest
from manifests import pod_templates, problems, read

from tfcollective._cli.app import invoke
from tfcollective._launch.plan.job_file import read_job

ROOT = Path(__file__).resolve().parents[3]
GOLDEN = Path(__file__).with_name("golden")
IMAGE = ("--image", "registry.example/train:1.0", "--job-name", "train")
SIZE = ("-np", "4")
MUCH = (
    *("--cpus", "4", "--memory", "8Gi", "--gpus", "2", "--shm", "2Gi", "--namespace", "research"),
    *("--volume", "pvc/data:/data:ro", "--volume", "emptydir:/scratch", "--volume", "configmap/conf:/etc/conf"),
    *("--env", "DATA=$(pwd)", "--env", "N=1e3", "--node-selector", "pool=gpu"),
    *("--toleration", "nvidia.com/gpu:NoSchedule", "--toleration", "team=research", "--service-account", "trainer"),
    *("--priority-class", "low", "--run-as", "1234:99", "--label", "team=research", "--annotation", "note=a b"),
    *("--ttl", "60", "--image-pull-secret", "registry", "--image-pull-policy", "Always", "--grace", "50.5"),
    *("--op-timeout", "30", "--max-restarts", "1"),
)
KEY = ("--key-secret", "my-key")
ELASTIC = ("--min-np", "2", "--max-np", "8")
ROLES = ("--task-spec", "chief", "--task-spec", "worker:instances=2", "--task-spec", "evaluator")
JOBS = {
    **{f"{kind}-plain": ("--kind", kind, *SIZE) for kind in ("job", "jobset", "trainjob", "tfjob", "mpijob")},
    **{f"{kind}-much": ("--kind", kind, *SIZE, *MUCH, *KEY) for kind in ("job", "jobset", "trainjob", "tfjob")},
    "mpijob-much": ("--kind", "mpijob", *SIZE, *MUCH),
    **{f"{kind}-elastic": ("--kind", kind, *SIZE, *ELASTIC) for kind in ("job", "jobset", "mpijob")},
    **{f"{kind}-queue": ("--kind", kind, *SIZE, "--queue", "q") for kind in ("job", "jobset", "trainjob", "tfjob")},
    "jobset-elastic-queue": ("--kind", "jobset", *SIZE, *ELASTIC, "--queue", "q"),
    "job-eight-ranks-in-a-pod": (*SIZE, "--procs-per-pod", "2", "--gpus", "2", "--gpus-per-proc", "1"),
    "job-evaluator": ROLES,
    "tfjob-evaluator": ("--kind", "tfjob", *ROLES),
    "job-shared-gpu": (*SIZE, "--procs-per-pod", "2", "--gpus", "1", "--gpus-per-proc", "1", "--oversubscribe-gpus"),
    "job-root": (*SIZE, "--run-as", "0"),
    "job-deadline": (*SIZE, "--active-deadline", "3600"),
    "jobset-deadline": ("--kind", "jobset", *SIZE, *ELASTIC, "--active-deadline", "3600"),
    "job-env-from": (*SIZE, "--env-from", "secret/login", "--env-from", "configmap/conf"),
}
COMMAND = ("--", "python", "train.py", "--epochs", "5")


@pytest.fixture
def manifest(capfd):
    """What is printed for these options."""

    def made(*arguments):
        assert invoke("tfcollective", ["manifest", *IMAGE, *arguments, *COMMAND]) == 0, capfd.readouterr().err
        return capfd.readouterr().out

    return made


@pytest.fixture
def refusal(capfd):
    """Why these options are refused."""

    def said(*arguments):
        assert invoke("tfcollective", ["manifest", *arguments, *COMMAND]) == 64
        out, err = capfd.readouterr()
        assert out == ""
        return err

    return said


@pytest.mark.parametrize("name", JOBS)
def test_every_object_is_what_its_schema_wants(manifest, name):
    text = manifest(*JOBS[name])
    assert text == manifest(*JOBS[name])  # the same bytes
    objects = read(text)
    assert objects
    for one in objects:
        assert problems(one) == [], one["kind"]
        for template in pod_templates(one):
            pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p"}, "spec": template["spec"]}
            assert problems(pod) == []


@pytest.mark.parametrize("name", ["job-plain", "job-much", "job-elastic", "jobset-elastic", "trainjob-plain"])
def test_it_reads_as_people_have_read_it(manifest, name):
    path = GOLDEN / f"kubernetes_{name}.yaml"
    text = manifest(*JOBS[name])
    if os.environ.get("TFC_TESTS_WRITE_GOLDEN"):
        path.write_text(text)
    assert text == path.read_text()


@pytest.mark.parametrize("name", ["job-plain", "jobset-plain", "trainjob-plain", "tfjob-plain", "mpijob-plain"])
@pytest.mark.parametrize("change", ["unknown", "type"])
def test_the_schemas_refuse_what_is_mutilated(manifest, name, change):
    for one in read(manifest(*JOBS[name])):
        for broken in mutilated(one, change):
            assert problems(broken) != [], broken


def mutilated(one, change):
    """Copies with one error each: a field that no kind has, or one of another type."""
    for place in [["spec"], *([*path, "spec"] for path in paths_to_templates(one))]:
        broken = copy.deepcopy(one)
        node = broken
        for key in place:
            node = node[key]
        if change == "unknown":
            node["noSuchField"] = 1
        else:
            key = next(iter(node))
            node[key] = ["x"] if not isinstance(node[key], list) else 7
        yield broken


def paths_to_templates(node, path=()):
    if isinstance(node, dict):
        if "containers" in node.get("spec", {}):
            yield list(path)
        for key, value in node.items():
            yield from paths_to_templates(value, (*path, key))
    elif isinstance(node, list):
        for number, value in enumerate(node):
            yield from paths_to_templates(value, (*path, number))


@pytest.mark.parametrize("name", JOBS)
def test_pods_get_the_key_by_secret_only(manifest, name):
    text = manifest(*JOBS[name])
    objects = read(text)
    assert not [one for one in objects if one["kind"] == "Secret"]
    if name.startswith("mpijob"):
        assert "train-key" not in text and "TFCOLLECTIVE_KEY" not in text
        return
    secret = "my-key" if name.endswith("much") else "train-key"
    assert f"create secret generic {secret} " in text
    for one in objects:
        for template in pod_templates(one):
            volumes = {volume["name"]: volume for volume in template["spec"]["volumes"]}
            assert volumes["key"]["secret"] == {"secretName": secret, "defaultMode": 0o400}


def test_joint_pods_know_size_and_meeting_point(manifest):
    service, job = read(manifest(*JOBS["job-plain"]))
    template = job["spec"]["template"]["spec"]
    env = {one["name"]: one.get("value") for one in template["containers"][0]["env"]}
    assert env["TFCOLLECTIVE_SIZE"] == "4"
    assert env["TFCOLLECTIVE_RENDEZVOUS"] == "train-0.train:29477"
    assert template["subdomain"] == service["metadata"]["name"] == "train"
    assert service["spec"]["selector"].items() <= job["spec"]["template"]["metadata"]["labels"].items()
    assert job["spec"]["completions"] == job["spec"]["parallelism"] == 4


def test_variables_reach_the_ranks_as_they_were_typed(manifest):
    assert "- name: 'N'\n              value: '1e3'\n" in manifest(*JOBS["job-much"])
    (job,) = read(manifest(*JOBS["job-much"]))[1:]
    env = {one["name"]: one.get("value") for one in job["spec"]["template"]["spec"]["containers"][0]["env"]}
    assert env["DATA"] == "$$(pwd)"  # for Kubernetes this means $(pwd)
    assert env["N"] == "1e3"  # neither a truth value nor a number for kubectl
    assert env["TFCOLLECTIVE_OP_TIMEOUT"] == "30"


def test_a_launcher_waits_for_its_initial_agents(manifest):
    _, launcher, agents = read(manifest(*JOBS["job-elastic"]))
    command = launcher["spec"]["template"]["spec"]["containers"][0]["command"]
    assert command[:4] == ["tfcollective", "job", "--launcher", "agents"]
    job = read_job(command[4])
    assert (job.num_proc, job.min_proc, job.max_proc) == (4, 2, 8)
    assert job.platform == {"agents": 4, "port": 29477}
    assert job.command == ("python", "train.py", "--epochs", "5")
    assert agents["spec"]["completions"] == 8
    host = launcher["spec"]["template"]["spec"]["hostname"]
    assert f"{host}.train:29477" in agents["spec"]["template"]["spec"]["containers"][0]["command"]


def test_a_number_that_is_0_counts(manifest):
    text = manifest(*SIZE, "--max-restarts", "0")
    assert "--max-restarts 0 --" in text.splitlines()[0]
    assert read(text)[1]["spec"]["backoffLimit"] == 0
    launcher = read(manifest(*SIZE, *ELASTIC, "--stall-warning", "0"))[1]
    command = launcher["spec"]["template"]["spec"]["containers"][0]["command"]
    assert read_job(command[4]).stall_warning == 0


def test_local_variables_and_directory_do_not_matter(manifest, monkeypatch, tmp_path):
    options = (*SIZE, "--log-dir", "logs")
    text = manifest(*options)
    monkeypatch.setenv("TFCOLLECTIVE_OP_TIMEOUT", "77")
    monkeypatch.chdir(tmp_path)
    assert manifest(*options) == text
    assert read_job(read(text)[1]["spec"]["template"]["spec"]["containers"][0]["command"][4]).log_dir == "logs"


def test_an_mpijob_finds_its_hosts_itself(manifest):
    def launcher(*arguments):
        (job,) = read(manifest("--kind", "mpijob", *SIZE, *arguments))
        template = job["spec"]["mpiReplicaSpecs"]["Launcher"]["template"]
        return template["spec"]["containers"][0]["command"]

    fixed, elastic = launcher(), launcher(*ELASTIC)
    assert fixed[2:6] == ["--launcher", "ssh", "--hostfile", "/etc/mpi/hostfile"]
    assert read_job(elastic[4]).discovery == ("/etc/mpi/discover_hosts.sh",)


def test_a_queue_of_kueue_gets_the_job_suspended(manifest):
    _, job = read(manifest(*JOBS["job-queue"]))
    assert job["metadata"]["labels"]["kueue.x-k8s.io/queue-name"] == "q"
    assert job["spec"]["suspend"] is True


def test_a_module_runs_under_python(capfd):
    assert invoke("tfcollective", ["manifest", *IMAGE, "-np", "1", "-m", "mypackage.train", "--epochs", "3"]) == 0
    (_, job) = read(capfd.readouterr().out)
    container = job["spec"]["template"]["spec"]["containers"][0]
    assert container["command"] == ["python", "-m", "mypackage.train", "--epochs", "3"]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (SIZE, "image (--image) is missing: Image of all pods"),
        ((*SIZE, "--image", "a b"), "(--image): expected the name of a container image for the pods, got 'a b'"),
        ((*IMAGE,), "the number of ranks is missing: give -np N or --task-spec ROLE:instances=N"),
        ((*SIZE, *IMAGE, "--job-name", "Train"), "(--job-name): expected lower-case letters"),
        ((*SIZE, *IMAGE, "--job-name", "1train"), "a letter at the start"),
        ((*SIZE, *IMAGE, "--job-name", "a" * 62), "choose a name of at most 61"),
        ((*SIZE, *IMAGE, "--job-name", "a" * 64), "has 64 characters, and 63 are allowed"),
        ((*SIZE, *IMAGE, *ELASTIC, "--job-name", "a" * 56), "choose a name of at most 54"),
        ((*SIZE, *IMAGE, "--memory", "8 GiB"), "(--memory): expected a quantity such as"),
        ((*SIZE, *IMAGE, "--cpus", "-1"), "(--cpus): expected a quantity"),
        ((*SIZE, *IMAGE, "--volume", "data:/data"), "(--volume): expected pvc/NAME:/PATH"),
        ((*SIZE, *IMAGE, "--volume", "pvc/data:data"), "(--volume): expected"),
        ((*SIZE, *IMAGE, "--volume", "pvc:/data"), "every other volume needs one"),
        ((*SIZE, *IMAGE, "--volume", "emptydir:/dev/shm"), "/dev/shm is mounted twice"),
        ((*SIZE, *IMAGE, "--env-from", "login"), "(--env-from): expected secret/NAME"),
        ((*SIZE, *IMAGE, "--node-selector", "pool"), "(--node-selector): expected NAME=VALUE"),
        ((*SIZE, *IMAGE, "--node-selector", "pool=a b"), "(--node-selector): pool: expected letters"),
        ((*SIZE, *IMAGE, "--label", "a/b/c=1"), "(--label): expected"),
        ((*SIZE, *IMAGE, "--toleration", "gpu:Never"), "(--toleration): expected KEY"),
        ((*SIZE, *IMAGE, "--run-as", "me"), "(--run-as): expected UID"),
        ((*SIZE, *IMAGE, "--ttl", "0"), "(--ttl): expected a number of seconds, above 0"),
        ((*SIZE, *IMAGE, "--queue", "q", *ELASTIC), "use --kind jobset"),
        ((*SIZE, *IMAGE, "--kind", "tfjob", *ELASTIC), "--min-np needs: use --kind job or --kind jobset"),
        ((*SIZE, *IMAGE, "--kind", "trainjob", "--log-dir", "x"), "--log-dir needs"),
        ((*SIZE, *IMAGE, "--kind", "mpijob", "--env-from", "secret/a"), "use --env"),
        ((*SIZE, *IMAGE, "--kind", "mpijob", *KEY), "an MPIJob has none"),
        ((*SIZE, *IMAGE, "--kind", "cronjob"), "cronjob"),
        ((*SIZE, *IMAGE, "-H", "a:1"), "-H"),
        ((*SIZE, *IMAGE, "--gpus", "1", "--gpus-per-proc", "2"), "--gpus 1: in each pod, 1 ranks with 2 GPUs each"),
        ((*SIZE, *IMAGE, "--gpus", "1", "--procs-per-pod", "2", "--gpus-per-proc", "1"), "need 2 GPUs"),
        ((*SIZE, *IMAGE, "--gpus-per-proc", "1"), "--gpus 0: in each pod"),
        ((*SIZE, *IMAGE, "--namespace", "a.b"), "(--namespace): expected"),
        ((*SIZE, *IMAGE, "--min-np", "5"), "fewer than the 5 it needs"),
    ],
)
def test_what_kubernetes_would_refuse_is_refused_before(refusal, arguments, said):
    assert said in refusal(*arguments)


@pytest.mark.skipif(shutil.which("k8scheck") is None, reason="k8scheck is not on the PATH: make test-kubernetes")
@pytest.mark.parametrize("name", JOBS)
def test_an_api_server_would_take_it(manifest, tmp_path, name):
    path = tmp_path / "manifest.yaml"
    path.write_text(manifest(*JOBS[name]))
    done = subprocess.run(["k8scheck", str(path)], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout


def test_a_multiline_command_stays_one_word(capfd):
    program = "print(1)\nprint(2)\u2028"
    assert invoke("tfcollective", ["manifest", *IMAGE, *SIZE, "--", "python", "-c", program]) == 0
    (_, job) = read(capfd.readouterr().out)
    assert job["spec"]["template"]["spec"]["containers"][0]["command"] == ["python", "-c", program]


def commands_of(page):
    """The words of each `tfcollective manifest` in the blocks of a page, without what a shell does with its output."""
    for block in re.findall(r"^```\n(.*?)^```", page, re.M | re.S):
        for line in block.replace("\\\n", " ").splitlines():
            words = shlex.split(line)
            if words[:2] == ["tfcollective", "manifest"]:
                ends = [number for number, word in enumerate(words) if word.startswith((">", "|"))]
                yield words[1 : min(ends, default=len(words))]


def test_the_pages_commands_print_valid_manifests(capfd):
    found = list(commands_of((ROOT / "docs" / "howto" / "kubernetes.md").read_text()))
    assert len(found) == 3
    for words in found:
        assert invoke("tfcollective", words) == 0, words
        assert [problem for one in read(capfd.readouterr().out) for problem in problems(one)] == []


def test_the_pages_secret_matches_the_manifest(manifest):
    (line,) = (text for text in manifest(*SIZE).splitlines() if "openssl" in text)
    assert line.lstrip("# ") in (ROOT / "docs" / "howto" / "kubernetes.md").read_text()
