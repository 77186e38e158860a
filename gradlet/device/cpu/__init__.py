"""The CPU: LLVM machine code, a native thread pool, host memory."""
