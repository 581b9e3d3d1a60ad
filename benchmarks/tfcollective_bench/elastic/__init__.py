"""``tfcollective bench elastic``: how soon training continues when a rank is lost."""
