import ast
import logging
from dataclasses import fields
from pathlib import Path

import pytest

import tfcollective
from tfcollective._base.errors import ConfigError
from tfcollective._base.settings import VARIABLES, Settings, markdown_table, variable, without_outer_job
from tfcollective._base.tasks import TaskKey
from tfcollective._base.topology import Endpoint

PACKAGE = Path(tfcollective.__file__).parent


def test_the_table_and_the_class_agree():
    assert [field.name for field in fields(Settings)] == [row.field for row in VARIABLES]
    assert Settings() == Settings.load({})
    for row in VARIABLES:
        assert getattr(Settings(), row.field) == row.default


def test_values_are_parsed():
    settings = Settings.load(
        {
            "TFCOLLECTIVE_COORDINATOR": "10.0.0.1:80",
            "TFCOLLECTIVE_TASK": "worker:3",
            "TFCOLLECTIVE_SIZE": "4",
            "TFCOLLECTIVE_OP_TIMEOUT": "2.5",
            "TFCOLLECTIVE_TRANSPORT": "TCP",
            "TFCOLLECTIVE_JOB_ID": "",
            "OTHER": "x",
        }
    )
    assert settings.coordinator == Endpoint("10.0.0.1", 80)
    assert settings.task == TaskKey("worker", 3)
    assert (settings.size, settings.op_timeout, settings.transport, settings.job_id) == (4, 2.5, "tcp", None)


def test_a_nested_job_inherits_no_outer_identity():
    both = {"PATH": "/bin", "TFCOLLECTIVE_OP_TIMEOUT": "5", "TFCOLLECTIVE_BUCKET_BYTES": "4096"}
    mine = {**both, "TFCOLLECTIVE_TIMELINE": "/t.json"}
    assert without_outer_job(mine) == mine
    fields = ("task", "key_file", "beat_dir", "failure_file", "node_id", "restarts")
    of_a_rank = {variable(field): "x" for field in fields}
    assert without_outer_job({**mine, **of_a_rank, "TF_CONFIG": "{}"}) == both


def test_horovods_variables_count_where_ours_are_not_set():
    theirs = {
        "HOROVOD_GLOO_TIMEOUT_SECONDS": "30",
        "HOROVOD_START_TIMEOUT": "31",
        "HOROVOD_ELASTIC_TIMEOUT": "32",
        "HOROVOD_STALL_CHECK_TIME_SECONDS": "0",
        "HOROVOD_FUSION_THRESHOLD": "0",
        "HOROVOD_TIMELINE": "/t.json",
        "HOROVOD_LOG_LEVEL": "TRACE",
    }
    found = Settings.load(theirs)
    assert (found.op_timeout, found.start_timeout, found.elastic_timeout, found.stall_warning) == (30, 31, 32, 0)
    assert (found.bucket_bytes, found.timeline, found.log_level) == (1, "/t.json", "debug")
    assert Settings.load({**theirs, "TFCOLLECTIVE_OP_TIMEOUT": "5"}).op_timeout == 5.0
    assert Settings.load({"HOROVOD_TIMELINE": "DYNAMIC"}).timeline is None


def test_buckets_suit_the_link_by_default():
    assert Settings.load({}).bucket_bytes is None
    assert Settings.load({"TFCOLLECTIVE_BUCKET_BYTES": "Auto", "HOROVOD_FUSION_THRESHOLD": "7"}).bucket_bytes is None
    assert Settings.load({"TFCOLLECTIVE_BUCKET_BYTES": "4096"}).bucket_bytes == 4096
    with pytest.raises(ConfigError, match="TFCOLLECTIVE_BUCKET_BYTES='lots' cannot be used"):
        Settings.load({"TFCOLLECTIVE_BUCKET_BYTES": "lots"})


def test_horovods_values_that_cannot_be_used_are_reported(caplog):
    with caplog.at_level(logging.WARNING, "tfcollective"):
        assert Settings.load({"HOROVOD_START_TIMEOUT": "soon"}).start_timeout == 120.0
    assert "HOROVOD_START_TIMEOUT='soon' has no effect here" in caplog.text


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("COORDINATOR", "nowhere"),
        ("TASK", "worker"),
        ("SIZE", "0"),
        ("SIZE", "two"),
        ("OP_TIMEOUT", "0"),
        ("OP_TIMEOUT", "inf"),
        ("OP_TIMEOUT", "nan"),
        ("STALL_WARNING", "-1"),
        ("TRANSPORT", "pigeon"),
        ("LOG_LEVEL", "loud"),
        ("KEY_FD", "-1"),
    ],
)
def test_a_bad_value_names_its_variable(name, value):
    with pytest.raises(ConfigError, match=f"TFCOLLECTIVE_{name}='{value}'"):
        Settings.load({f"TFCOLLECTIVE_{name}": value})


@pytest.mark.parametrize(
    ("text", "needed"),
    [
        *((text, "above 0") for text in ("four", "-4", "0", "nan")),
        *((text, r"at most 1000000 \(11.6 days\)") for text in ("inf", "1e10")),
    ],
)
def test_an_unusable_number_says_what_is_needed(text, needed):
    with pytest.raises(ConfigError, match=f"'{text}' cannot be used: expected a number of seconds, {needed}, got "):
        Settings.load({"TFCOLLECTIVE_OP_TIMEOUT": text})


def test_a_misspelt_variable_is_logged_once(caplog, monkeypatch):
    monkeypatch.setattr("tfcollective._base.settings._noted", set())
    environ = {"TFCOLLECTIVE_OP_TIMEUOT": "3", "TFCOLLECTIVE_PIGEONS": "3"}
    with caplog.at_level(logging.WARNING):
        Settings.load(environ)
        Settings.load(environ)
    assert [record.getMessage().partition("variable ")[2] for record in caplog.records] == [
        "TFCOLLECTIVE_OP_TIMEUOT means nothing to tfcollective: did you mean TFCOLLECTIVE_OP_TIMEOUT?",
        "TFCOLLECTIVE_PIGEONS means nothing to tfcollective: is it misspelt?",
    ]


def test_kubernetes_service_variables_are_not_misspelt_settings(caplog, monkeypatch):
    monkeypatch.setattr("tfcollective._base.settings._noted", set())
    names = ("SERVICE_HOST", "SERVICE_PORT", "SERVICE_PORT_HTTP", "PORT", "PORT_80_TCP", "PORT_80_TCP_ADDR")
    with caplog.at_level(logging.WARNING):
        Settings.load({f"TFCOLLECTIVE_{name}": "1" for name in names})
    assert not caplog.records


def test_the_documentation_has_every_variable():
    table = markdown_table()
    assert all(f"`{variable(row.field)}`" in table for row in VARIABLES)


def test_no_other_module_reads_the_environment():
    readers = {
        str(path.relative_to(PACKAGE.parent))
        for path in (*PACKAGE.rglob("*.py"), *(PACKAGE.parent / "tfcollective_launchers").rglob("*.py"))
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Attribute)
        and node.attr in ("environ", "getenv", "environb")
        and isinstance(node.value, ast.Name)
        and node.value.id == "os"
    }
    assert readers == {"tfcollective/_base/settings.py"}
