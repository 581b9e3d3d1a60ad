"""A job in a browser and for Prometheus: ``tfcollective run --web``."""
