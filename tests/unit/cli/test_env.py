"""``tfcollective env``."""

import json

import pytest

from tfcollective._cli import main

CLUSTER = {"chief": ["h0:2222"], "worker": ["h1:2222", "h2:2222"], "sidecar": ["h3:1"]}


@pytest.fixture(autouse=True)
def alone(monkeypatch, tmp_path):
    """No variables of the machine that the tests run on."""
    for name in ("TF_CONFIG", "CLUSTER_SPEC", "SM_HOSTS", "OMPI_COMM_WORLD_RANK", "PMI_RANK", "SLURM_PROCID"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("COLUMNS", "300")
    monkeypatch.chdir(tmp_path)


def config(kind, index=0, cluster=CLUSTER):
    return json.dumps({"cluster": cluster, "task": {"type": kind, "index": index}})


def test_a_tf_config_is_explained(monkeypatch, capsys):
    monkeypatch.setenv("TFCOLLECTIVE_KEY", "ab" * 32)
    assert main(["env", "--tf-config", config("worker", 1)]) == 0
    lines = [" ".join(line.split()) for line in capsys.readouterr().out.splitlines()]
    assert lines == [
        "source tf_config",
        "task worker:1",
        "rank 2",
        "size 3",
        "rendezvous h0:2222",
        "job key given by a file or a variable",
        "rank 0 chief:0",
        "rank 1 worker:0",
        "rank 2 worker:1",
        "note TF_CONFIG: the job 'sidecar' of the cluster is ignored",
    ]


def test_json_for_programs(tmp_path, capsys):
    (tmp_path / "c.json").write_text(config("chief", cluster={"chief": ["127.0.0.1:1"], "worker": ["127.0.0.1:2"]}))
    assert main(["env", "--tf-config", "@c.json", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == {
        "source": "tf_config",
        "task": "chief:0",
        "rank": 0,
        "size": 2,
        "job_id": "tf_config-2-1",
        "rendezvous": "127.0.0.1:1",
        "starts_coordinator": True,
        "key": "user",
        "trainers": ["chief:0", "worker:0"],
        "hosts": ["127.0.0.1", "127.0.0.1"],
        "notes": [],
        "problem": None,
    }


def test_a_missing_key_has_a_remedy(capsys):
    assert main(["env", "--tf-config", config("chief")]) == 64
    text = capsys.readouterr().out
    assert "h0:2222 (this process opens it)" in text
    assert "openssl rand -hex 32" in text


def test_the_environment_is_explained_and_left_alone(monkeypatch, capsys):
    assert main(["env"]) == 0
    assert "single" in capsys.readouterr().out
    monkeypatch.setenv("TF_CONFIG", config("evaluator"))
    monkeypatch.setenv("TFCOLLECTIVE_INSECURE", "1")
    assert main(["env"]) == 0
    text = " ".join(capsys.readouterr().out.split())
    assert "evaluator:0 rank none: outside the world size 3" in text
    assert "none, as TFCOLLECTIVE_INSECURE asks" in text
    assert main(["env"]) == 0
    # As TonY lists it: for itself alone.
    monkeypatch.setenv("TF_CONFIG", config("evaluator", cluster={"evaluator": ["h9:1"]}))
    assert main(["env"]) == 0
    assert "rank none: outside the world" in " ".join(capsys.readouterr().out.split())


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--tf-config", "{"], "TF_CONFIG is not JSON"),
        (["--tf-config", "{}"], "there is no TF_CONFIG with a cluster"),
        (["--tf-config", "@none.json"], "cannot read none.json"),
        (["--tf-config", config("ps", cluster={**CLUSTER, "ps": ["h9:1"]})], "there are no parameter servers"),
        (["--tf-config", config("worker", 7)], "this process is worker:7"),
    ],
)
def test_what_cannot_be_understood_is_said(arguments, message, capsys):
    assert main(["env", *arguments]) == 64
    assert message in capsys.readouterr().err


def test_a_ps_process_on_request(monkeypatch, capsys):
    monkeypatch.setenv("TFCOLLECTIVE_INSECURE", "1")
    text = config("ps", cluster={**CLUSTER, "ps": ["h9:1"]})
    assert main(["env", "--tf-config", text, "--ps-policy", "exit0"]) == 0
    assert "ps:0" in capsys.readouterr().out
