"""Follows hosts while an elastic job runs."""
