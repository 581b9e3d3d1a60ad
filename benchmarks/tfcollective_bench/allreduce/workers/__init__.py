"""The programs of the ranks: one module per library, all with one command line. Started by path or with ``-m``."""
