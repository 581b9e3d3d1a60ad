"""How long a promise of seconds may take here: a machine with more to do than cores keeps it later."""

import os


def within(seconds: float) -> float:
    """`seconds` of an idle machine, for as many processes that want a core now as there are for each core."""
    return seconds * max(1.0, os.getloadavg()[0] / (os.cpu_count() or 1))
