"""Memory, devices, counters and the cache of compiled kernels."""
