"""What a submitter says while its application waits for YARN. Without YARN."""

from contextlib import contextmanager
from types import SimpleNamespace

import pytest
from tfcollective_launchers.yarn.application import Amount
from tfcollective_launchers.yarn.cluster import NodeView
from tfcollective_launchers.yarn.launcher import Submitted
from tfcollective_launchers.yarn.options import YarnOptions
from tfcollective_launchers.yarn.skein_client import AppState, YarnClient

from tfcollective._base.errors import RendezvousError
from tfcollective._base.task_specs import TaskSpec
from tfcollective._base.timing import TIMING
from tfcollective._launch.hosted.messages import HostedOutcome
from tfcollective._launch.launcher import JobOutcome
from tfcollective._launch.plan.spec import JobSpec
from tfcollective._testing.clock import ManualClock

APPLICATION = "application_1_1"
SPEC = JobSpec(("a",), 2, task_specs={"worker": TaskSpec("4 GiB", 1, instances=2)})


class Yarn:
    """Grants what ``grants`` says: at each question what is not granted yet."""

    def __init__(self, *grants, state="RUNNING", why=""):
        self.grants = list(grants)
        self.report = AppState(state, "UNDEFINED", why, "root.research", "", "h")

    def submit(self, document, cancelled):
        return APPLICATION, SimpleNamespace(cert_bytes=b"c", key_bytes=b"p")

    def state(self, app_id):
        return self.report

    def endpoint(self, app_id, security):
        return "h:1"

    def ungranted(self, app_id, security):
        return self.grants.pop(0)

    def nodes(self):
        return (NodeView("n1:1", frozenset(), Amount(6144, 8), Amount(5120, 2)),)

    def kill(self, app_id):
        pass

    def wait_for_end(self, app_id, seconds, cancelled=lambda: False):
        return AppState("FINISHED", "SUCCEEDED", "", "root.research", "", "h")


@pytest.fixture(autouse=True)
def own_records(tmp_path, monkeypatch):
    monkeypatch.setenv("TFCOLLECTIVE_RUNTIME_DIR", str(tmp_path / "records"))


def said(yarn, capsys, looks=0):
    """The lines of a job that asks YARN so often how its application is, every ``TIMING.remind``."""
    clock = ManualClock()

    class Follower:
        def __init__(self, *unused):
            pass

        def __enter__(self):
            return self

        def __exit__(self, *unused):
            pass

        def follow(self, plan, gone, *unused, **more):
            assert gone() is None
            for _ in range(looks):
                clock.sleep(TIMING.remind)
                assert gone() is None
            return HostedOutcome(JobOutcome((), initialised=True), ())

    hosted = SimpleNamespace(key=b"k", plan=None, spec=SPEC)
    Submitted(yarn, hosted, YarnOptions(python="/p", allocation_timeout=60.0), clock, Follower).run({}, ())
    return [line for line in capsys.readouterr().err.splitlines() if "wait" in line or "has not begun" in line]


REFUSED = "org.apache.hadoop.yarn.exceptions.InvalidResourceRequestException: Invalid resource request! 9000 > 6144"


@pytest.mark.parametrize(("why", "too_large"), [(REFUSED, True), ("AM Container exited with 1", False)])
def test_a_request_can_be_too_large(why, too_large):
    assert AppState("FAILED", "FAILED", why, "default", "", "h").too_large == too_large


def test_containers_that_do_not_come_are_named(capsys):
    both, one = frozenset({"worker-0", "worker-1"}), frozenset({"worker-0"})
    yarn = Yarn(both, both, None, one, frozenset())
    assert said(yarn, capsys, looks=7) == [
        f"tfcollective: {APPLICATION} waits for YARN to grant {what}; free now: n1:1: 1024 MiB, 6 vcores"
        for what in ("worker-0 (4096 MiB, 1 vcores), worker-1 (4096 MiB, 1 vcores)", "worker-0 (4096 MiB, 1 vcores)")
    ]
    assert yarn.grants == []  # it was asked until all had come, and no longer


def test_containers_that_come_later_are_not_waited_for(capsys):
    """An elastic job asks for more of them while it runs."""
    assert said(Yarn(frozenset({"worker-2"})), capsys, looks=3) == []


def test_a_master_not_beginning_is_named_once(capsys):
    with pytest.raises(RendezvousError, match=r"is accepted after 60 s: .* YARN says: AM limit exceeded"):
        said(Yarn(state="ACCEPTED", why="AM limit exceeded"), capsys)
    lines = [line for line in capsys.readouterr().err.splitlines() if "has not begun" in line]
    need = "its master, which needs 1024 MiB in the queue root.research, has not begun"
    assert lines == [f"tfcollective: {APPLICATION} is accepted after 15 s: {need}; YARN says: AM limit exceeded"]


def test_the_master_knows_what_is_not_granted():
    class Client:
        @contextmanager
        def connect(self, app_id, *, wait, security):
            yield self

        def get_containers(self, *, states):
            assert states == ("WAITING", "REQUESTED")
            return [SimpleNamespace(service_name="worker-0"), SimpleNamespace(service_name="worker-0")]

    class Away(Client):
        def get_containers(self, *, states):
            raise OSError("no route")

    skein = SimpleNamespace(exceptions=SimpleNamespace(SkeinError=ZeroDivisionError))
    assert YarnClient(Client(), skein).ungranted(APPLICATION, None) == {"worker-0"}
    assert YarnClient(Away(), skein).ungranted(APPLICATION, None) is None
