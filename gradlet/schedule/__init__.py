"""From the tensor graph to a list of kernels: where to cut, in-place writes, order, memory."""
