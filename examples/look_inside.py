"""Print the kernel that an expression becomes: loops, schedule, code for three machines. No GPU is needed."""

from gradlet import Context, Tensor

for target in ("avx2", "nvptx", "amdgpu"):
    print(f"==== {target}")
    x = Tensor.empty(64, 256, device=f"NULL:{target}")
    with Context(DEBUG=4):
        (x * 2 + 1).relu().sum(axis=1).realize()
