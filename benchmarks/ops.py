"""Single operators beside torch (eager) and tinygrad (TinyJit). `--help` lists the options."""

from __future__ import annotations

import cases
import harness

if __name__ == "__main__":
    print(harness.run_table(harness.arguments(__doc__, list(cases.OPS))))
