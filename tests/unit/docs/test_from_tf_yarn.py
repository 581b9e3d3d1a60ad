"""The guide for those who come from tf-yarn names every parameter that there is."""

import inspect
import re
from dataclasses import fields
from pathlib import Path

import pytest
from tfcollective_launchers.yarn.api import Metrics, run_on_yarn
from tfcollective_launchers.yarn.options import YarnOptions

from tfcollective._base.task_specs import TaskSpec

PAGE = (Path(__file__).resolve().parents[3] / "docs" / "from-tf-yarn.md").read_text()
# The signature of tf-yarn 0.7.0.
THEIRS = """experiment_fn task_specs pyenv_zip_path skein_client files env queue acls file_systems
eval_monitor_log_thresholds nb_retries custom_task_module name pre_script_hook cuda_runtime_hdfs_path""".split()


def rows(heading):
    section = PAGE.split(f"## {heading}\n")[1].split("\n## ")[0]
    return {name for row in re.findall(r"^\| ([^|]*) \|", section, re.M) for name in re.findall(r"`(\w+)", row)}


def test_every_parameter_has_its_row():
    assert rows("`run_on_yarn`") >= set(THEIRS)
    parameters = inspect.signature(run_on_yarn).parameters
    assert set(THEIRS) <= {*parameters, *(one.name for one in fields(YarnOptions))}
    for name in set(parameters) - {"options"}:
        assert f"`{name}" in PAGE, name


@pytest.mark.parametrize("field", [one.name for one in fields(TaskSpec)])
def test_every_field_of_a_task_spec_is_there(field):
    assert field in rows("`TaskSpec`, labels, topologies")


def test_what_comes_back():
    names = {field.name for field in fields(Metrics)}
    assert {"total_training_duration", "total_eval_duration", "results", "auxiliary_tasks", "app_id"} <= names
