"""The parts of Horovod's ``common`` that scripts use."""
