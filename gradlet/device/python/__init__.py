"""The PYTHON device: kernels run by the reference evaluator."""
