"""The names in a job's pods, and what names Kubernetes allows: each check raises ConfigError that says what is."""

from __future__ import annotations

import re

from tfcollective.launcher import ConfigError

KEY_DIRECTORY = "/var/run/tfcollective"  # in every pod, with the job key
CALL_FILE, JOB_FILE, KEY_FILE = "call", "job", "key"  # in it, and in the job's Secret
POD_IP, POD_UID = "TFC_POD_IP", "TFC_POD_UID"  # variables of the pods, from the Downward API
SHARED_MEMORY = "/dev/shm"  # noqa: S108  of the pods, in which it is theirs alone
TAKEN = (KEY_DIRECTORY, SHARED_MEMORY)
LONGEST_LABEL = 63
_LONGEST_SUBDOMAIN = 253
_WORD = r"[a-z0-9]([-a-z0-9]*[a-z0-9])?"
_LABEL = re.compile(_WORD)
_SERVICE = re.compile(r"[a-z]([-a-z0-9]*[a-z0-9])?")
_SUBDOMAIN = re.compile(rf"{_WORD}(\.{_WORD})*")
_NAME = re.compile(r"[A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?")


def check_label(text: str) -> None:
    """Checks that a name is one label of a host name: RFC 1123."""
    _check(text, _LABEL, LONGEST_LABEL, "lower-case letters, digits and '-', with a letter or digit at each end")


def check_service_name(text: str) -> None:
    """The name of a Service: RFC 1035."""
    words = "lower-case letters, digits and '-', with a letter at the start and a letter or digit at the end"
    _check(text, _SERVICE, LONGEST_LABEL, words)


def check_subdomain(text: str) -> None:
    """The name of most objects."""
    words = "lower-case letters, digits, '-' and '.', with a letter or digit at both ends of each word"
    _check(text, _SUBDOMAIN, _LONGEST_SUBDOMAIN, words)


def check_qualified(text: str) -> None:
    """The key of a label or a taint, or a resource: ``name`` or ``prefix/name``."""
    prefix, slash, name = text.rpartition("/")
    if slash:
        check_subdomain(prefix)
    _check(name, _NAME, LONGEST_LABEL, "letters, digits, '-', '_' and '.', with a letter or digit at each end")


def check_label_value(text: str) -> None:
    """The value of a label."""
    if text:
        words = "letters, digits, '-', '_' and '.', with a letter or digit at each end"
        _check(text, _NAME, LONGEST_LABEL, words)


def check_host_names(name: str, ending: str) -> None:
    """The host names of pods: ``name`` is the job's, ``ending`` what the longest one has more."""
    if len(name) + len(ending) > LONGEST_LABEL:
        raise ConfigError(
            f"--job-name {name}: the host name {name}{ending} has {len(name) + len(ending)} characters, and "
            f"{LONGEST_LABEL} are allowed: choose a name of at most {LONGEST_LABEL - len(ending)}"
        )


def _check(text: str, pattern: re.Pattern[str], longest: int, allowed: str) -> None:
    if not isinstance(text, str) or not pattern.fullmatch(text):
        raise ConfigError(f"expected {allowed}, got {text!r}")
    if len(text) > longest:
        raise ConfigError(f"{text} has {len(text)} characters, and {longest} are allowed")
