"""Drive torch's operator database against `Tensor`: print counts, or write docs/parity.md.

python -m tests.parity.run add linalg.svd     # these, with the first differences
python -m tests.parity.run --all --jobs 2     # everything, a line an operator
python -m tests.parity.run --write            # everything, and docs/parity.md anew
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import sys
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

STATE_VERSION = 1


def _one(task: tuple[str, str]) -> tuple[str, dict[str, Any]]:
    """The counts of one operator, as plain data for another process."""
    from torch.testing._internal.common_methods_invocations import op_db

    from tests.parity.check import check_operator
    from tests.parity.table import entry_of, key_of

    key, parts = task
    operator = next(o for o in op_db if key_of(o) == key)
    entry = entry_of(operator)
    if entry is None:
        return key, {}
    report = check_operator(operator, entry, parts=parts)
    counts = {}
    for name in ("forward", "errors", "backward", "second"):
        count = getattr(report, name)
        counts[name] = {"passed": count.passed, "total": count.total, "problems": count.problems[:40]}
    return key, counts


def main() -> int:
    """Run from the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", help="operators by name, or name.variant")
    parser.add_argument("--all", action="store_true", help="every operator that is mapped")
    parser.add_argument("--write", action="store_true", help="everything, and docs/parity.md anew")
    parser.add_argument("--jobs", type=int, default=1, help="processes")
    parser.add_argument("--parts", default="feb2", help="letters: forward, errors, backward, 2nd")
    parser.add_argument("--show", type=int, default=5, help="differences shown a part")
    parser.add_argument("--state", type=Path, help="file that keeps results, so that a run can go on where it stopped")
    options = parser.parse_args()

    from torch.testing._internal.common_methods_invocations import op_db

    from tests.parity.table import ENTRIES, entry_of, key_of

    everything = options.all or options.write
    keys = [key_of(o) for o in op_db if entry_of(o) is not None]
    if not everything:
        wanted = set(options.names)
        unknown = wanted - {key_of(o) for o in op_db} - {o.name for o in op_db}
        if unknown or not wanted:
            print(f"not in the database: {sorted(unknown)}" if unknown else "name operators, or use --all")
            return 2
        found = [o for o in op_db if o.name in wanted or key_of(o) in wanted]
        for key in (key_of(o) for o in found if entry_of(o) is None):
            print(f"{key}: not mapped")
        keys = [key_of(o) for o in found if entry_of(o) is not None]
    results: dict[str, dict[str, Any]] = {}
    if options.state is not None and options.state.exists():
        results = dict(json.loads(line) for line in options.state.read_text().splitlines())
    tasks = [(key, options.parts) for key in keys if key not in results]
    with multiprocessing.get_context("spawn").Pool(options.jobs, maxtasksperchild=50) as pool:
        for key, counts in pool.imap_unordered(_one, tasks) if options.jobs > 1 else map(_one, tasks):
            results[key] = counts
            if options.state is not None:
                with options.state.open("a") as file:
                    file.write(json.dumps([key, counts]) + "\n")
            _show(key, counts, options.show if not everything else 0)
    assert ENTRIES
    if options.write:
        from tests.parity.page import write_page

        write_page(results)
    incomplete = [k for k in keys if any(c["passed"] < c["total"] for c in results[k].values())]
    print(f"{len(keys) - len(incomplete)} of {len(keys)} pass in all parts")
    return 0


def _show(key: str, counts: dict[str, Any], shown: int) -> None:
    parts = [f"{name} {c['passed']}/{c['total']}" for name, c in counts.items() if c["total"]]
    good = all(c["passed"] == c["total"] for c in counts.values())
    print(f"{'ok ' if good else 'BAD'} {key}: {', '.join(parts)}", flush=True)
    for name, count in counts.items():
        for problem in count["problems"][:shown]:
            print(f"      {name} {problem}")
        if len(count["problems"]) > shown > 0:
            print(f"      {name} ... {len(count['problems']) - shown} more (at most 40 kept)")


if __name__ == "__main__":
    sys.exit(main())
