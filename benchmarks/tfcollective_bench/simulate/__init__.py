"""``tfcollective bench simulate``: predicts all-reduce on worlds that are not there, from the steps that ranks take."""
