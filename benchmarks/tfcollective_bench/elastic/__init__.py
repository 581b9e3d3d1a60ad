"""``tfcollective bench elastic``: how soon training goes on when a rank is lost."""
