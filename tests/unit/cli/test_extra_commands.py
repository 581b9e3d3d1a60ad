"""Commands that other distributions bring."""

from importlib.metadata import EntryPoint

import click
import pytest

import tfcollective
import tfcollective_bench
from tfcollective._base.errors import LaunchError, UnsupportedError
from tfcollective._cli import app
from tfcollective._cli.app import GROUP, CommandGroup


@pytest.fixture
def installed(monkeypatch):
    """What the environment has as entry points, by name."""
    points: dict[str, str] = {}

    class Points(tuple):
        names = property(lambda self: {point.name for point in self})

    def entry_points(group: str, name: str | None = None) -> Points:
        assert group == GROUP
        return Points(EntryPoint(key, value, group) for key, value in points.items() if name in (None, key))

    monkeypatch.setattr(app, "entry_points", entry_points)
    return points


def call(*arguments):
    return CommandGroup("tool").main(list(arguments), standalone_mode=False)


def test_another_distributions_command_is_listed_and_found(installed):
    installed["hello"] = "click:echo"
    group = CommandGroup("tool")
    with click.Context(group) as context:
        assert {"bench", "hello"} < set(group.list_commands(context))
        assert group.get_command(context, "other") is None


@pytest.mark.parametrize("arguments", [[], ["allreduce", "-np", "2"], ["--help"]])
def test_a_missing_extra_says_how_to_install(installed, arguments):
    with pytest.raises(UnsupportedError, match=r"pip install 'tfcollective\[bench\]'"):
        call("bench", *arguments)


def test_what_cannot_be_loaded_is_named(installed):
    installed["bench"] = "tfcollective.no_such_module:bench"
    with pytest.raises(LaunchError, match="'bench' cannot be loaded: No module named"):
        call("bench")
    installed["bench"] = "tfcollective:__version__"
    with pytest.raises(LaunchError, match="is not a command"):
        call("bench")


def test_the_benchmarks_have_the_version_that_they_measure():
    assert tfcollective_bench.__version__ == tfcollective.__version__
