"""The limit of open descriptors of this process and of what it starts."""

import os
import resource
import subprocess
import sys
import textwrap


def limits_in_a_new_process(program):
    """What a program prints whose soft limit is 256."""
    code = (
        "import os, resource, subprocess, sys, threading\nfrom tfcollective._base.descriptors import *\n"
        + textwrap.dedent(
            """
        def soft(pid=0):
            return resource.prlimit(pid, resource.RLIMIT_NOFILE)[0]
        """
        )
    )
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    command = ["sh", "-c", 'ulimit -Sn 256 && exec "$@"', "sh", sys.executable, "-c", code + textwrap.dedent(program)]
    done = subprocess.run(command, capture_output=True, text=True, check=True, env=dict(os.environ))
    most = 1 << 20 if hard == resource.RLIM_INFINITY else min(hard, 1 << 20)
    return [{256: "usual", most: "most"}.get(int(word), word) for word in done.stdout.split()]


def test_the_limit_is_raised_only_while_needed():
    assert limits_in_a_new_process(
        """
        with many_descriptors():
            print(soft())
            with many_descriptors():
                print(soft())
            print(soft())
        print(soft())
        raise_limit()
        with many_descriptors():
            print(soft())
        print(soft())
        """
    ) == ["most", "most", "most", "usual", "most", "most"]


def test_children_get_the_limit_that_was_usual():
    assert limits_in_a_new_process(
        """
        def child():
            with subprocess.Popen(["cat"], stdin=subprocess.PIPE) as process:
                print(soft(process.pid))
                give_usual_limit(process.pid)
                print(soft(process.pid))
        child()
        with many_descriptors():
            child()
        """
    ) == ["usual", "usual", "most", "usual"]
