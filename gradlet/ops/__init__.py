"""The vocabulary: operations, their typed arguments, and the methods that Node, Pattern and Tensor share."""
