"""Benchmarks, measured next to other libraries where these can do the same; their reports and plots.

One folder for each: ``allreduce``, ``training``, ``scaling``, ``elastic``, ``chaos`` (a job under faults) and
``simulate`` (predictions). Every runner is a process of its own; runners take turns (``experiment``, ``interleave``),
so that what else the machine does meets all of them alike.
"""

__version__ = "1.0.0"
