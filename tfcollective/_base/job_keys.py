"""Job keys, and the keys derived from one: one for each purpose and name.

A job key itself is never sent and signs nothing. A proof made with one derived key is worth nothing where another is
needed: two jobs that were given one key form two worlds, and a connection for data is not one for control.
"""

from __future__ import annotations

import hmac
import json
import secrets

JOB = "job"  # the job key itself, where one secret serves several jobs
CONTROL = "control"  # connections to the coordinator of the job with this name
RANKS = "ranks"  # connections between the ranks of the job with this name
OBJECTS = "objects"  # objects that collectives of the job with this name carry
CLUSTER = "cluster"  # the coordinator that hands the calls of the cluster with this name to its processes
ROWS = "rows"  # the connection on which a rank gets its rows, at the address with this name

_KEY_BYTES = 32


def new_key() -> bytes:
    """A fresh random job key."""
    return secrets.token_bytes(_KEY_BYTES)


def derived_key(job_key: bytes, purpose: str, name: str = "") -> bytes:
    """A key of 32 bytes for one purpose and one name (HKDF-Expand of RFC 5869, one block)."""
    return hmac.digest(job_key, json.dumps(["tfcollective", purpose, name]).encode() + b"\x01", "sha256")
