"""The reference evaluator: `evaluate` (tensor stage), `run_kernel` and `run_launch` (kernel), `run_linear` (linear)."""

from __future__ import annotations

from gradlet.graph.evaluate_kernel import run_kernel
from gradlet.graph.evaluate_launch import run_launch
from gradlet.graph.evaluate_linear import run_linear
from gradlet.graph.evaluate_tensor import evaluate

__all__ = ["evaluate", "run_kernel", "run_launch", "run_linear"]
