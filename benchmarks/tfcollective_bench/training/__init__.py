"""The training benchmark: the same models on the same data, trained by us, by others and by nobody together."""
