"""What ``tfcollective.run`` refuses before it starts anything."""

import inspect
import threading

import pytest

import tfcollective
from tfcollective.launch.local import LocalLauncher
from tfcollective.launch.registry import find_launcher


def test_the_signature_is_for_good():
    parameters = inspect.signature(tfcollective.run).parameters
    assert [name for name, one in parameters.items() if one.kind is not one.KEYWORD_ONLY] == [
        "fn",
        "args",
        "kwargs",
        "np",
        "options",
    ]
    assert [name for name, one in parameters.items() if one.kind is one.KEYWORD_ONLY] == ["launcher", "task_specs"]


def test_an_unknown_option_is_named():
    with pytest.raises(
        tfcollective.ConfigError, match=r"unknown option 'hosts'; known: cwd, emit_tf_config, env, horovod"
    ):
        tfcollective.run(print, np=2, hosts="a:1")


def test_task_specs_are_not_supported_yet():
    with pytest.raises(tfcollective.UnsupportedError, match="task_specs"):
        tfcollective.run(print, task_specs={})


def test_a_bad_np_is_refused():
    with pytest.raises(tfcollective.ConfigError, match="1 or more, not 0"):
        tfcollective.run(print, np=0)


def test_a_function_that_cannot_be_pickled_is_refused():
    lock = threading.Lock()
    with pytest.raises(tfcollective.InvalidArgumentError, match="cannot be sent to another process"):
        tfcollective.run(lambda: lock, np=2)


def test_launchers_are_found_by_name():
    assert isinstance(find_launcher("local"), LocalLauncher)
    with pytest.raises(tfcollective.ConfigError, match="no launcher 'cloud'; known: local"):
        find_launcher("cloud")
