"""Options of a job that reach its ranks as variables: pure. Errors name the option of the command line."""

from __future__ import annotations

from tfcollective.errors import ConfigError
from tfcollective.settings import variable

__all__ = ["bucket_variables", "gpu_options"]

_MEBIBYTE = 1 << 20


def bucket_variables(size: str | float | None) -> dict[str, str]:
    """What sets the size of buckets, in MiB or ``auto``; nothing for None. Raises ConfigError."""
    if size is None:
        return {}
    if isinstance(size, str) and size.lower() == "auto":
        return {variable("bucket_bytes"): "auto"}
    try:
        mebibytes = float(size)
    except (TypeError, ValueError):
        raise ConfigError(f"--bucket-mb is a number of MiB or auto, not {size!r}") from None
    if not 0 < mebibytes < _MEBIBYTE:
        raise ConfigError(f"--bucket-mb is above 0, not {size}")
    return {variable("bucket_bytes"): str(max(1, int(mebibytes * _MEBIBYTE)))}


def gpu_options(each: int | None, *, shared: bool) -> dict[str, str]:
    """What gives each rank ``each`` GPUs; None: ranks see them all. ``shared``: several ranks may use one. Raises
    ConfigError."""
    if each is not None and (not isinstance(each, int) or isinstance(each, bool) or each < 1):
        raise ConfigError(f"--gpus-per-proc is 1 or more, not {each!r}")
    wish = {} if each is None else {variable("gpus_per_proc"): str(each)}
    return {**wish, variable("share_gpus"): "1"} if shared else wish
