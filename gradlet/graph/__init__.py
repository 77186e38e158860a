"""The one graph: nodes, inference, patterns, rewriting, passes, specs, text form, reference evaluator."""
