"""From one kernel to its linear program."""
