"""Engines that cannot be had."""

import sys

import pytest

import tfcollective
from tfcollective._base.errors import ConfigError


@pytest.mark.parametrize(
    ("engine", "module", "message"),
    [
        ("mpi", "mpi4py", r"pip install 'tfcollective\[mpi\]'"),
        ("horovod", "horovod.tensorflow", "pip install --no-build-isolation horovod==0.28.1"),
    ],
)
def test_what_to_install_is_said(engine, module, message, monkeypatch):
    monkeypatch.setitem(sys.modules, module.split(".")[0], None)
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(ConfigError, match=message):
        tfcollective.init(engine=engine)
    assert not tfcollective.is_initialized()


def test_an_unknown_engine_is_named():
    with pytest.raises(ConfigError, match="expected one of native, horovod, mpi, got 'nccl'"):
        tfcollective.init(engine="nccl")


def test_the_variable_says_it_too(monkeypatch):
    monkeypatch.setenv("TFCOLLECTIVE_ENGINE", "nccl")
    with pytest.raises(ConfigError, match="TFCOLLECTIVE_ENGINE"):
        tfcollective.init()
