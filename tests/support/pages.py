"""The pages of docs/howto as their readers use them."""

import os
import re
import subprocess
import sys
from pathlib import Path

from time_limits import within

_HOWTO = Path(__file__).resolve().parents[2] / "docs" / "howto"


def blocks(page):
    """The blocks of code of a page: their language, and the text."""
    return re.findall(r"^```(\w*)\n(.*?)^```", (_HOWTO / page).read_text(), re.M | re.S)


def first_job(page):
    """What a page has its reader type first, and the lines of the ranks that it shows."""
    texts = [text for kind, text in blocks(page) if not kind]
    (typed,) = [text for text in texts if text.startswith("cat >train.py")]
    (shown,) = [text for text in texts if text.startswith("[0]<stdout>")]
    return typed, shown.splitlines()


def type_in(folder, *command, seconds=300):
    """Runs a command in a directory, where this environment is active and ``tfcollective`` is a command."""
    program = folder / "bin" / "tfcollective"
    program.parent.mkdir()
    program.write_text(f'#!/bin/sh\nexec {sys.executable} -m tfcollective "$@"\n')
    program.chmod(0o755)
    places = (str(program.parent), str(Path(sys.executable).parent), os.environ["PATH"])
    env = {**os.environ, "PATH": os.pathsep.join(places)}
    return subprocess.run(
        command, cwd=folder, env=env, capture_output=True, text=True, timeout=within(seconds), stdin=subprocess.DEVNULL
    )
