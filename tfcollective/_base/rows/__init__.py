"""Rows that travel from Spark to ranks."""
