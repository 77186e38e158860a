"""The `gradlet` command: one module a subcommand, each with `add_arguments(parser)` and `run(arguments)`."""
