"""Hides scikit-learn: see jobs.py."""

raise ImportError("scikit-learn is hidden from this process")
