"""Makes the namespaces of a container and waits for its process 1: ``enter.py NETNS COMMAND...``. Ends with the exit
code of the command, 128 + N after signal N. (unshare of util-linux 2.38 loses that of SIGKILL.)"""

import ctypes
import os
import signal
import sys

_PR_SET_PDEATHSIG = 1
_NEWNS, _NEWUTS, _NEWIPC, _NEWPID, _NEWNET = 0x00020000, 0x04000000, 0x08000000, 0x20000000, 0x40000000


def main(netns: str, command: list[str]) -> int:
    """Runs the command; it ends when this process does, and this one when its parent does."""
    libc = ctypes.CDLL(None, use_errno=True)

    def call(name: str, *arguments: int) -> None:
        if getattr(libc, name)(*arguments) != 0:
            raise OSError(ctypes.get_errno(), name)

    call("prctl", _PR_SET_PDEATHSIG, signal.SIGKILL)
    call("setns", os.open(f"/run/netns/{netns}", os.O_RDONLY | os.O_CLOEXEC), _NEWNET)
    call("unshare", _NEWNS | _NEWUTS | _NEWIPC | _NEWPID)
    child = os.fork()
    if child == 0:
        call("prctl", _PR_SET_PDEATHSIG, signal.SIGKILL)
        os.execvp(command[0], command)
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    return 128 - code if code < 0 else code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], sys.argv[2:]))
