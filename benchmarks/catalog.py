"""Every case by name: a worker and the harness look up here what they are asked for."""

from __future__ import annotations

from collections.abc import Callable

from cases import OPS, STEPS, Case
from kernel_cases import KERNELS
from models import MODELS

CASES: dict[str, Callable[[], Case]] = {**OPS, **STEPS, **KERNELS, **MODELS}
