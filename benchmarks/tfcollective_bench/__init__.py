"""Benchmarks: the all-reduce and training measured side by side with others, their reports and plots.

Every runner is a process of its own; runners take turns, so that what else the machine does meets all of them alike.
"""

__version__ = "0.1.0"
