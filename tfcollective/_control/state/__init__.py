"""A coordinator's knowledge of its job: pure."""
