"""Plans a job: turns the user's request into the processes of every node."""
