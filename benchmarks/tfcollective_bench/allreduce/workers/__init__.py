"""What the ranks run: one module a library, each with the same command line. Started by path or with ``-m``."""
