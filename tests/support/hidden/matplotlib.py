"""Hides matplotlib: see jobs.py."""

raise ImportError("matplotlib is hidden from this process")
