"""A job as text: how a platform hands it to the launcher that it starts elsewhere, with ``tfcollective job``."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

from tfcollective._base.codec import from_document, to_document
from tfcollective._base.errors import ConfigError
from tfcollective._base.options import check_names
from tfcollective._launch.plan.spec import JobSpec

_WHAT = "the description of the job"


def job_text(spec: JobSpec) -> str:
    """Returns all that differs from the defaults, as readable JSON, without the job key and the function."""
    said, usual = _document(spec), _document(JobSpec(spec.command, spec.num_proc))
    always = ("command", "num_proc")
    return json.dumps({name: value for name, value in said.items() if name in always or value != usual[name]}, indent=2)


def read_job(text: bytes | str) -> JobSpec:
    """The job that :func:`job_text` has written; ConfigError for anything else, also for an option of another version
    that this one does not know."""
    try:
        document = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"{_WHAT} cannot be read: it is not JSON: {error}") from error
    if isinstance(document, dict):
        check_names(document, JobSpec.__dataclass_fields__, f"option in {_WHAT}:")
    return from_document(document, JobSpec, _WHAT)


def _document(spec: JobSpec) -> dict[str, Any]:
    platform = {name: value for name, value in spec.platform.items() if value not in (None, (), {}, "")}
    document: dict[str, Any] = to_document(replace(spec, key=None, call=None, platform=platform))
    return document
