"""Clients of a coordinator."""
