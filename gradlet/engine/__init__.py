"""Running: kernels to programs, schedules to memory, capture and replay."""
