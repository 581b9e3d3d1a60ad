"""The text of ``tfcollective check --report``: what a bug report needs, without secrets."""

from __future__ import annotations

import platform
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime, timezone
from importlib import metadata
from pathlib import Path

from tfcollective._base.errors import ConfigError
from tfcollective._base.private_directory import write_private
from tfcollective._launch.launcher import Finding

REPORT_NAME = "tfcollective-report.txt"
_REMOVED = "(removed)"
# Variables that change what this program, TensorFlow or NCCL does. Of all others not even the name is shown.
_SHOWN = re.compile(
    r"(TFCOLLECTIVE|HOROVOD|TF|CUDA|NVIDIA|NCCL|OMP|KMP|MKL|OPENBLAS|XLA|KERAS|PYTHON|LD|MALLOC|SLURM|OMPI|PMI)_?[A-Z0-9_]*"
    r"|PATH|LANG|LC_ALL|VIRTUAL_ENV|CONDA_PREFIX|((HTTPS?|ALL|NO)_PROXY|(https?|all|no)_proxy)"
)
_SECRET_NAME = re.compile(
    r"KEY|TOKEN|SECRET|PASSW|PASSPHRASE|_PWD|CREDENTIAL|AUTH|SIGNATURE|COOKIE|PRIVATE|SESSION", re.IGNORECASE
)
_SECRETS = (
    # user:password@host, up to the last @ where the password has one; proxies are given without http://, too
    (re.compile(r"(?<=://)[^\s\"']*@"), f"{_REMOVED}@"),
    (re.compile(r"[^\s\"'=:/@]+:(?!//)[^\s\"']*@(?=[\w\[])"), f"{_REMOVED}@"),
    (re.compile(r"(?<=\?)[^\s\"'?]*=[^\s\"']*"), _REMOVED),  # signed links
    # What services call their tokens, and words as long and mixed as only keys are.
    (re.compile(r"\b(gh[a-z]|github_pat|glpat|hf|sk|pk|xox[a-z]|pypi|npm)[-_][\w-]{10,}"), _REMOVED),
    (re.compile(r"\b(AKIA|ASIA|AIza)[\w-]{12,}"), _REMOVED),
    (re.compile(r"\b(?=[A-Za-z]*\d)(?=\d*[A-Za-z])[A-Za-z0-9]{20,}={0,2}"), _REMOVED),
    (re.compile(r"\b(?=[\w-]*\d)(?=[\w-]*[a-z])(?=[\w-]*[A-Z])[\w-]{32,}"), _REMOVED),
)
# Shorter values of secret variables are words such as "1" or "yes", which stand elsewhere, too.
_LEAST_SECRET = 5


def lines_of(finding: Finding) -> Iterator[str]:
    """A finding as it is printed."""
    mark = "FAILED" if not finding.ok else "note  " if finding.noted else "ok    "
    yield f"{mark} {finding.name}: {finding.detail}"
    if finding.noted or not finding.ok:
        yield f"       to mend it: {finding.remedy}"


def write_report(path: Path, findings: Sequence[Finding], environ: Mapping[str, str]) -> None:
    """Writes the report with mode 0600, in place of a file that is there already and may be open to others; ConfigError
    when the file cannot be written."""
    if path.is_symlink() or (path.exists() and not path.is_file()):
        raise ConfigError(f"--report {path}: cannot write the report: it is a link, or no file")
    text = report_text(findings, environ)
    try:
        write_private(path, text.encode())
    except OSError as error:
        raise ConfigError(f"--report {path}: cannot write the report: {error.strerror}") from error


def report_text(findings: Sequence[Finding], environ: Mapping[str, str]) -> str:
    """The findings, the system, the variables that matter and the installed packages, without secrets."""
    sections = {
        "What was checked": [line for finding in findings for line in lines_of(finding)],
        "System": _system(),
        "Variables": list(_variables(environ)),
        "Packages": sorted({f"{one.name} {one.version}" for one in metadata.distributions()}, key=str.lower),
    }
    blocks = ["\n".join([f"## {title}", "", *(lines or ["none"])]) for title, lines in sections.items()]
    made = f"Made by tfcollective check --report on {datetime.now(timezone.utc):%Y-%m-%d %H:%M} UTC."
    return _without_secrets("\n\n".join([made, *blocks]) + "\n", environ)


def _system() -> list[str]:
    # Paths in it may be long words of all kinds, such as environments named by a hash: they are treated as secrets.
    lines = [f"{platform.system()} {platform.release()} {platform.machine()}", f"Python {sys.version}", sys.executable]
    with_release = Path("/etc/os-release")
    if with_release.exists():
        found = re.search(r'^PRETTY_NAME="?([^"\n]*)', with_release.read_text("utf-8", "replace"), re.MULTILINE)
        lines.insert(0, found[1] if found else "")
    return lines


def _variables(environ: Mapping[str, str]) -> Iterator[str]:
    for name in sorted(environ):
        if _SHOWN.fullmatch(name):
            yield f"{name}={_REMOVED if _SECRET_NAME.search(name) else environ[name]}"


def _without_secrets(text: str, environ: Mapping[str, str]) -> str:
    """Removes values of secret variables wherever they stand, what looks like a token, and the path of the home."""
    values = {value for name, value in environ.items() if _SECRET_NAME.search(name) and len(value) >= _LEAST_SECRET}
    for value in sorted(values, key=len, reverse=True):
        text = text.replace(value, _REMOVED)
    for pattern, replacement in _SECRETS:
        text = pattern.sub(replacement, text)
    home = environ.get("HOME", "")
    return text.replace(home, "~") if len(home) > 1 else text
