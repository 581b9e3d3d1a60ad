"""How ranks are dealt to agents that somebody else has started."""

import json
import os
import platform

import pytest
from patience import within

from tfcollective._version import __version__
from tfcollective.control.auth import new_key
from tfcollective.control.client import CoordinatorClient
from tfcollective.control.server import CoordinatorServer, ServerOptions
from tfcollective.control.store import Entry
from tfcollective.errors import ConfigError, RendezvousError
from tfcollective.launch import joined
from tfcollective.launch.joined import Attendance, deal_to
from tfcollective.launch.nodes.protocol import orders_key
from tfcollective.launch.plan.spec import JobSpec
from tfcollective.launch.system.secret_file import write_secret
from tfcollective.tasks import workers


def dealt(num_proc, *slots):
    names = [f"n{index}" for index in range(len(slots))]
    return [(share.host.name, share.first, share.count) for share in deal_to(names, slots, JobSpec(("x",), num_proc))]


def test_evenly_when_nobody_says_how_many():
    assert dealt(4, None, None) == [("n0", 0, 2), ("n1", 2, 2)]
    assert dealt(3, None, None) == [("n0", 0, 2), ("n1", 2, 1)]
    assert dealt(1, None, None) == [("n0", 0, 1)]


def test_what_an_agent_says_counts():
    assert dealt(5, 1, None) == [("n0", 0, 1), ("n1", 1, 4)]
    assert dealt(2, 4, 4) == [("n0", 0, 2)]
    assert dealt(4, 4, None) == [("n0", 0, 4)]


def test_agents_that_take_too_few():
    with pytest.raises(ConfigError, match="5 processes do not fit"):
        dealt(5, 2, 2)


def test_who_gives_no_sign_of_life_is_not_there():
    attendance = Attendance(7.0)
    assert not attendance.knows(0)
    for number in (0, 1, 2):
        attendance.note(number, None, 100.0)
    assert all(attendance.here(number, 106.9) for number in (0, 1, 2))
    attendance.note(0, Entry({"ended": False}, 4), 106.0)
    attendance.note(1, None, 106.0)
    attendance.note(2, Entry({"ended": True}, 1), 106.0)
    assert [attendance.here(number, 108.0) for number in (0, 1, 2)] == [True, False, False]
    attendance.note(0, Entry({"ended": False}, 4), 113.5)  # the same one again
    assert not attendance.here(0, 113.5)
    attendance.note(0, Entry({"ended": False}, 5), 114.0)  # it was stopped, and goes on
    assert attendance.here(0, 114.0)


@pytest.fixture
def client():
    key = new_key()
    options = ServerOptions("job", key, workers(1), 100.0)
    with CoordinatorServer(options) as server, CoordinatorClient(server.endpoint, key) as client:
        yield client


def come(client, *hosts, **facts):
    said = {"version": __version__, "python": platform.python_version(), **facts}
    return [client.enroll(host * 32, {"name": host, "host": host, **said}) for host in hosts]


def refusal(client, number):
    entry = client.wait(orders_key(number), timeout=within(20))
    return json.loads(entry.value[0])["refused"]


def test_agents_that_have_died_do_not_count(client, monkeypatch):
    monkeypatch.setattr(joined, "_LOOK_S", 0.05)
    monkeypatch.setattr(joined, "_POLL_S", 0.05)
    come(client, "a")
    with pytest.raises(RendezvousError, match=r"0 of 2 agents came within 0\.3 s: none; gone again: a"):
        joined._gather(client, 2, 0.3, set(), 0.0)  # no silence is short enough, however fast this machine looks
    come(client, "b")
    assert [one.host for one in joined._gather(client, 2, 60.0, set(), 60.0)] == ["a", "b"]  # all are new to a new wait


def test_agents_of_another_version_are_refused(client):
    come(client, "a", version="0")
    come(client, "b")
    refused = set()
    assert [one.host for one in joined._gather(client, 1, 60.0, refused, 60.0)] == ["b"]
    assert refused == {0}
    assert "has tfcollective 0" in refusal(client, 0)


def test_agents_that_come_too_late_are_told(client):
    come(client, "a", "b")
    (first,) = joined._gather(client, 1, 60.0, set(), 60.0)
    assert first.host == "a"
    joined._turn_away(client, {first.number})
    assert "this one is not needed" in refusal(client, 1)
    (late,) = come(client, "c")
    assert "this one is not needed" in refusal(client, late)
    assert client.get(orders_key(0)) is None


def test_a_secret_is_ones_own_and_goes_away(tmp_path):
    path = tmp_path / "key"
    path.write_text("old")
    os.chmod(path, 0o644)
    with write_secret(str(path), "new"):
        assert path.read_text() == "new"
        assert path.stat().st_mode & 0o777 == 0o600
    assert not path.exists()
    with pytest.raises(ConfigError, match="cannot be put into"), write_secret(str(tmp_path / "no" / "key"), "x"):
        pass
