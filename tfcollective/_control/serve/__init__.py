"""The coordinator: its server, its process and its files."""
