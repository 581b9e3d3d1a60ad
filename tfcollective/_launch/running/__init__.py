"""A job while it runs, as its launcher holds it."""
