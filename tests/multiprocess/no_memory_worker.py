"""A rank on a host without shared memory. Usage: no_memory_worker.py refused|full."""

from __future__ import annotations

import ctypes
import errno
import os
import struct
import sys

import numpy as np

import tfcollective

MEMFD_CREATE, FALLOCATE = 319, 285  # on x86-64


def refuse(call: int, error: int) -> None:
    """From now on the system call fails in this process, as under the seccomp profile of a container."""
    instructions = [
        (0x20, 0, 0, 0),  # load the number of the call
        (0x15, 0, 1, call),  # another one: skip one instruction
        (0x06, 0, 0, 0x00050000 | error),  # SECCOMP_RET_ERRNO
        (0x06, 0, 0, 0x7FFF0000),  # SECCOMP_RET_ALLOW
    ]
    code = ctypes.create_string_buffer(b"".join(struct.pack("HBBI", *one) for one in instructions))
    program = ctypes.create_string_buffer(struct.pack("HxxxxxxQ", len(instructions), ctypes.addressof(code)))
    libc = ctypes.CDLL(None, use_errno=True)
    assert libc.prctl(38, 1, 0, 0, 0) == 0, "PR_SET_NO_NEW_PRIVS"
    set_filter, all_threads = 1, 1
    assert libc.syscall(317, set_filter, all_threads, program) == 0, os.strerror(ctypes.get_errno())


if sys.argv[1] == "refused":
    refuse(MEMFD_CREATE, errno.EPERM)
else:
    refuse(FALLOCATE, errno.ENOSPC)
tfcollective.init()
communicator = tfcollective.get_communicator()
assert not communicator.info().uses_shared_memory
result = communicator.allreduce(np.ones(1000, np.float32), tfcollective.Sum)
np.testing.assert_array_equal(result, np.full(1000, float(tfcollective.size())))
print("ok", flush=True)
tfcollective.shutdown()
