"""NVIDIA GPUs through the CUDA driver: kernels as CUDA C, compiled by NVRTC."""
