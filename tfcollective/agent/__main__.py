"""``python -m tfcollective.agent``: what launchers start."""

from __future__ import annotations

import sys

from tfcollective.agent.main import main

if __name__ == "__main__":
    sys.exit(main())
