import pytest

from tfcollective.agent.config import (
    AgentConfig,
    KillCommand,
    StopCommand,
    WorkerConfig,
    command_from_line,
    command_to_line,
)
from tfcollective.agent.policy import StopCause
from tfcollective.errors import ConfigError

CONFIG = AgentConfig(
    job_id="job",
    coordinator="127.0.0.1:5",
    key="ab" * 32,
    workers=(WorkerConfig("worker:0", 0, ("python", "-c", "print('\n')"), {"A": "é"}),),
    scratch_dir="/s",
)


def test_it_travels_as_one_line():
    line = CONFIG.to_line()
    assert line.count(b"\n") == 1
    assert AgentConfig.from_line(line) == CONFIG


def test_the_key_is_not_shown():
    assert CONFIG.key not in repr(CONFIG)


@pytest.mark.parametrize("line", [b"", b"{", b"[]", b"3", b"{}", b'{"workers": []}', b'{"workers": [{}]}'])
def test_other_lines_are_no_configuration(line):
    with pytest.raises(ConfigError, match="configuration cannot be read"):
        AgentConfig.from_line(line)


@pytest.mark.parametrize(
    "command", [StopCommand(15), StopCommand(15, StopCause.ELSEWHERE), KillCommand("worker:1", "because")]
)
def test_commands(command):
    assert command_from_line(command_to_line(command)) == command


@pytest.mark.parametrize("line", [b"", b"3", b"[]", b'{"stop": null}', b'{"kill": {"task": "x"}}', b'{"go": 1}'])
def test_other_lines_are_no_commands(line):
    with pytest.raises(ConfigError, match="does not know"):
        command_from_line(line)
