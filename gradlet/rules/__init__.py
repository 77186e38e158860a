"""Simplification, grouped by what a rule guarantees; `sets` is the only place where rule sets are combined."""
