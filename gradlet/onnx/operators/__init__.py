"""The operators of ONNX, one module a family; `registry.load_all` imports them."""
