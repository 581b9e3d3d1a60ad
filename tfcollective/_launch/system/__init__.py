"""The launcher's use of its host: signals, ssh, the cleanup after a dead agent."""
