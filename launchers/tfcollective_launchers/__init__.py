"""Launchers for platforms other than this machine, found by the entry-point group ``tfcollective.launchers``."""
