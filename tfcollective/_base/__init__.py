"""The vocabulary of all rooms: errors, tasks, settings, time and files."""
