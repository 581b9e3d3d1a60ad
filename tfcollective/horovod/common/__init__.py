"""What scripts use of Horovod's ``common``."""
