"""``tfcollective bench chaos``: an elastic job whose ranks are disturbed all the time."""
