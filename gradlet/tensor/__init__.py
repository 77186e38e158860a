"""The public Tensor, `jit`, and what they are made of."""
