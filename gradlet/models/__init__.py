"""Well-known networks, a readable file each, with the state-dict names of their public checkpoints."""
