import socket

import pytest

from tfcollective._base.errors import ConfigError
from tfcollective._base.settings import Settings
from tfcollective._base.tasks import TaskKey, workers
from tfcollective._base.topology import Endpoint
from tfcollective._control.identity import Identity, KeySource, key_source
from tfcollective._control.serve.server import CoordinatorServer
from tfcollective._control.wire.protocol import ServerOptions
from tfcollective._runtime import native, rendezvous
from tfcollective._runtime.rendezvous import arrange, choose_bind_host, choose_listening_host

KEY = b"k" * 32


def identity(rank=1, host="127.0.0.1", port=5, key=None, hosts=()):
    return Identity(
        TaskKey("worker", rank), 2, Endpoint(host, port), "job", key, "tf_config", "n", workers(2), tuple(hosts)
    )


@pytest.mark.parametrize(
    ("addresses", "own", "all_local", "chosen"),
    [
        (["10.0.0.1"], ["10.0.0.1"], False, "10.0.0.1"),
        (["10.9.9.9"], [], False, "0.0.0.0"),  # a service's address
        ([], [], False, "0.0.0.0"),  # not known yet
        (["fd00::1"], ["fd00::1"], False, "fd00::1"),
        (["fd00::1"], [], False, "::"),
        (["127.0.1.1"], ["127.0.1.1"], False, "0.0.0.0"),  # Debian's /etc/hosts
        (["127.0.1.1", "10.0.0.1"], ["127.0.1.1", "10.0.0.1"], False, "0.0.0.0"),
        (["127.0.0.2"], ["127.0.0.2"], True, "127.0.0.2"),
    ],
)
def test_rank_0_listens_where_it_is_listed(addresses, own, all_local, chosen):
    assert choose_listening_host(addresses, own.__contains__, all_local=all_local) == chosen


@pytest.mark.parametrize(
    ("to_coordinator", "ways", "chosen"),
    [
        ("10.0.0.2", {}, "10.0.0.2"),
        ("127.0.0.1", {}, "127.0.0.1"),
        ("127.0.0.1", {"h1": "10.0.0.1"}, "10.0.0.1"),
        ("127.0.0.1", {"h0": None, "h1": "127.0.0.1", "h2": "10.0.0.1"}, "10.0.0.1"),
        (None, {"h1": "10.0.0.1"}, "10.0.0.1"),
        (None, {}, "127.0.0.1"),
    ],
)
def test_peers_come_by_the_way_that_leads_out(to_coordinator, ways, chosen):
    assert choose_bind_host(to_coordinator, list(ways), ways.get) == chosen


def test_where_the_key_comes_from():
    assert key_source(identity(key=KEY, host="h0"), Settings()) is KeySource.GIVEN
    assert key_source(identity(), Settings()) is KeySource.USER
    assert key_source(identity(hosts=["localhost", "127.0.0.2"]), Settings()) is KeySource.USER
    assert key_source(identity(host="h0"), Settings(insecure=True)) is KeySource.NONE
    for one in (identity(host="h0"), identity(hosts=["127.0.0.1", "10.0.0.1"])):
        with pytest.raises(ConfigError, match="TFCOLLECTIVE_KEY_FILE"):
            key_source(one, Settings())


def test_a_name_that_appears_late_is_waited_for(monkeypatch):
    """As with a Kubernetes service: the name is not there before the pod is."""
    real, asked = socket.getaddrinfo, []

    def look_up(host, *arguments, **options):
        if host != "late.test":
            return real(host, *arguments, **options)
        asked.append(host)
        if len(asked) < 4:
            raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")
        return real("127.0.0.1", *arguments, **options)

    monkeypatch.setattr(socket, "getaddrinfo", look_up)
    with CoordinatorServer(ServerOptions("job", KEY, workers(2), 60.0)) as server:
        one = identity(host="late.test", port=server.endpoint.port, key=KEY)
        found = arrange(Settings(start_timeout=60.0), one)
    assert (found.endpoint.host, found.key, found.bind_host) == ("late.test", KEY, "127.0.0.1")
    assert len(asked) >= 4


def test_while_waiting_it_says_for_whom(caplog):
    nowhere, settings = Endpoint("127.0.0.1", 9), Settings(start_timeout=2.0)
    with pytest.raises(rendezvous.RendezvousError, match="has not opened") as caught:
        rendezvous._await_coordinator(nowhere, KEY, identity(port=9), settings, remind=0.0)
    assert caught.value.missing == ("worker:0",)
    assert "waiting for worker:0 (rank 0): no answer from the coordinator" in caplog.text


def test_an_own_key_differs_between_jobs(tmp_path):
    settings = Settings(runtime_dir=str(tmp_path / "jobs"))
    keys = {rendezvous._job_key(settings, Identity(**{**vars(identity()), "job_id": name})) for name in ("a", "b", "a")}
    assert len(keys) == 2


def test_connections_of_ranks_belong_to_their_job():
    """Two jobs that were given one key have different ones there."""
    one, other = (Identity(**{**vars(identity(key=KEY)), "job_id": name}) for name in ("a", "b"))
    assert native._rank_key(one) != native._rank_key(other)
    assert KEY not in (native._rank_key(one), native._rank_key(other))
    assert native._rank_key(one) == native._rank_key(one)
