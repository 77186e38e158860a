"""A device that compiles for any LLVM target, holds no memory and runs nothing."""
