"""Jobs whose launcher runs on the platform: the submitter's side, the platform's side, and what they say."""
