"""The end of a job, and what follows from it."""
