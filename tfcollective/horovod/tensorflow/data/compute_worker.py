"""See ``tfcollective.tensorflow.data.compute_worker``."""

import runpy

if __name__ == "__main__":
    runpy.run_module("tfcollective.tensorflow.data.compute_worker", run_name="__main__")
