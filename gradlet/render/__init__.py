"""Linear programs as source text."""
