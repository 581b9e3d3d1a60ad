import pytest

from tfcollective.agent.config import AgentConfig, StopCommand, WorkerConfig
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


def test_stop_command():
    assert StopCommand.from_line(StopCommand(15).to_line()) == StopCommand(15)
    for line in (b"", b"[]", b'{"stop": null}', b'{"go": 1}'):
        with pytest.raises(ConfigError):
            StopCommand.from_line(line)
