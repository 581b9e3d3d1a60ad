"""What each system writes, and how it is understood: one JSON file a system in ``fixtures``."""

import json
from pathlib import Path

import pytest

from tfcollective._base.errors import ConfigError
from tfcollective._base.host_names import expand_hosts
from tfcollective._base.settings import Settings
from tfcollective._control.identity import discover

FIXTURES = Path(__file__).parent / "fixtures"
CASES = [
    pytest.param(case, id=f"{path.stem}: {case['name']}")
    for path in sorted(FIXTURES.glob("*.json"))
    for case in json.loads(path.read_text())
]


def understand(case):
    environ = {name: value if isinstance(value, str) else json.dumps(value) for name, value in case["environ"].items()}
    own = set(case.get("own_hosts", ()))
    settings = Settings.load({"TFCOLLECTIVE_NODE_ID": "n", **environ})
    return discover(settings, environ, own.__contains__, lambda names: case.get("started_by"))


def described(identity):
    ranks = {str(task): rank for rank, task in enumerate(identity.trainers)}
    return {
        "source": identity.source,
        "task": str(identity.task),
        "rank": 0 if identity.source == "single" else ranks.get(str(identity.task)),
        "size": identity.world_size,
        "rendezvous": None if identity.coordinator is None else str(identity.coordinator),
        "hosts": list(identity.hosts),
        "trainers": list(ranks),
        "notes": list(identity.notes),
        "loopback": identity.on_loopback,
        "job": identity.job_id,
    }


@pytest.mark.parametrize("case", CASES)
def test_what_a_system_writes_is_understood(case):
    if "error" in case:
        with pytest.raises(ConfigError, match=case["error"]):
            understand(case)
        return
    found = described(understand(case))
    assert {name: found[name] for name in case["expect"]} == case["expect"]


@pytest.mark.parametrize("name", ["tfjob", "by_hand", "slurm", "mpi"])
def test_one_rank_starts_the_coordinator(name):
    """Of all that agree on a world, only rank 0 does; an auxiliary task and a process alone do not."""
    for case in json.loads((FIXTURES / f"{name}.json").read_text()):
        if "expect" in case:
            expected = case["expect"]
            first = expected["rank"] == 0 and expected["rendezvous"] is not None
            assert understand(case).starts_coordinator == first, case["name"]


@pytest.mark.parametrize(
    ("text", "hosts"),
    [
        ("a", ["a"]),
        ("a,b-1", ["a", "b-1"]),
        ("n[1-3]", ["n1", "n2", "n3"]),
        ("n[08-10,3],g", ["n08", "n09", "n10", "n3", "g"]),
        ("r[1-2]n[1-2]-ib", ["r1n1-ib", "r1n2-ib", "r2n1-ib", "r2n2-ib"]),
    ],
)
def test_slurm_lists_of_hosts(text, hosts):
    assert expand_hosts(text) == hosts


@pytest.mark.parametrize("text", ["", ",", "a,", "a[", "a]", "a[1-2", "a[]", "a[x]", "a[1-]", "a[[1]]", "n[1-9999999]"])
def test_other_lists_of_hosts_are_refused(text):
    with pytest.raises(ConfigError, match="host"):
        expand_hosts(text)
