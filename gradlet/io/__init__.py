"""Reading and writing files of tensors."""
