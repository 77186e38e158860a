"""Language models: one transformer for the families in use, its files, tokens, chat and sampling."""
