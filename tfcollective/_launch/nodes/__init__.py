"""Nodes: providers, and how a job gets its nodes."""
