"""Whole training steps (forward, backward, optimizer) beside torch (eager) and tinygrad (TinyJit)."""

from __future__ import annotations

import cases
import harness

if __name__ == "__main__":
    print(harness.run_table(harness.arguments(__doc__, list(cases.STEPS))))
