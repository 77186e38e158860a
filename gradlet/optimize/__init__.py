"""The loop schedule of one kernel as data: the vocabulary of actions and the default choice."""
