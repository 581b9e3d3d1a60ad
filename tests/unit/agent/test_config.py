import pytest

from tfcollective._base.codec import decode, encode_line
from tfcollective._base.errors import ConfigError
from tfcollective._base.tasks import TaskKey
from tfcollective._launch.agent.policy import StopCause
from tfcollective._launch.agent.protocol import AgentConfig, KillCommand, Order, SignalCommand, StopCommand, WorkerPlan

CONFIG = AgentConfig(
    job_id="job",
    workers=(WorkerPlan(TaskKey.parse("worker:0"), 0, ("python", "-c", "print('\n')"), {"A": "é"}),),
    scratch_dir="/s",
)


def test_it_travels_as_one_line():
    line = encode_line(CONFIG)
    assert line.count(b"\n") == 1
    assert decode(line, AgentConfig, "it") == CONFIG


@pytest.mark.parametrize("line", [b"", b"{", b"[]", b"3", b"{}", b'{"workers": []}', b'{"workers": [{}]}'])
def test_other_lines_are_no_configuration(line):
    with pytest.raises(ConfigError, match="the configuration cannot be read"):
        decode(line, AgentConfig, "the configuration")


@pytest.mark.parametrize(
    "command",
    [
        StopCommand(15),
        StopCommand(15, StopCause.ELSEWHERE),
        SignalCommand(10),
        KillCommand("worker:1", "because"),
        KillCommand("worker:1", "because", if_stopped=True),
    ],
)
def test_commands(command):
    assert decode(encode_line(Order.of(command)), Order, "the order").command == command


@pytest.mark.parametrize("line", [b"", b"3", b"[]", b'{"stop": null}', b'{"kill": {"task": "x"}}', b'{"go": 1}'])
def test_other_lines_are_no_commands(line):
    with pytest.raises(ConfigError, match="the order cannot be read"):
        decode(line, Order, "the order")
