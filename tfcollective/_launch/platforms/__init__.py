"""The providers that need no platform: this machine, agents that join, and what those share that run commands."""
