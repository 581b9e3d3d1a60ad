"""Process sets."""

from tfcollective.tensorflow import (  # noqa: F401
    ProcessSet,
    add_process_set,
    global_process_set,
    remove_process_set,
)
