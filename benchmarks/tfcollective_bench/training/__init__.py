"""The training benchmark: the same models on the same data, by tfcollective, by others and unconnected."""
