"""ONNX models on gradlet: a checked graph, one function an operator, run as tensors. Needs the extra `[onnx]`."""
