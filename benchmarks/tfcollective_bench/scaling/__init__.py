"""``tfcollective bench scaling``: what a step costs as ranks and tensors grow, and a coordinator with many agents."""
