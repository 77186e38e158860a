"""`gradlet cache`: what the cache on disk holds, what processes took from it, results of searches, and emptying it."""

from __future__ import annotations

import argparse
from collections import Counter
from typing import Any

from gradlet.base.report import human_bytes


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """`stats` (the default), `searches` or `clear`."""
    actions = ("stats", "searches", "clear")
    parser.add_argument("action", nargs="?", default="stats", choices=actions, help="what to do (stats)")


def run(arguments: argparse.Namespace) -> int:
    """Show or empty the cache. Kernels that are gone are compiled again when needed, schedules searched again."""
    from gradlet.runtime import diskcache, history

    if arguments.action == "searches":
        from gradlet.engine.beam import kept_searches

        lines = [line for content in diskcache.contents(diskcache.SEARCH) for line in kept_searches(content)]
        print(
            "\n".join(lines) if lines else f"no searches in {diskcache.folder()}; BEAM=4 in the environment starts them"
        )
        return 0
    found = diskcache.stats()
    if arguments.action == "clear":
        print(
            f"removed {diskcache.clear()} of {found.entries} entries ({human_bytes(found.bytes)}) from {found.folder}"
        )
        history.clear()
        return 0
    print(f"folder   {found.folder}")
    kinds = f"{found.captures} of them captured programs, {found.searches} results of searches (gradlet cache searches)"
    print(f"entries  {found.entries}, {kinds}")
    print(f"size     {human_bytes(found.bytes)} (pruned above {human_bytes(diskcache.MAX_BYTES)})")
    print("\n".join(used(history.lines())))
    return 0


def used(processes: list[dict[str, Any]]) -> list[str]:
    """What finished processes took from the cache, and what they had to make, and why."""
    totals: dict[str, Counter[str]] = {"schedules": Counter(), "why": Counter(), "disk": Counter()}
    last = ""
    for process in processes:
        for part, counts in totals.items():
            counts.update({str(name): int(number) for name, number in process.get(part, {}).items()})
        if process.get("last"):
            last = f"{process['last']} in {process.get('script') or 'an interactive process'}"
    schedules, disk, why = totals["schedules"], totals["disk"], totals["why"]
    lines = [
        f"used by  {len(processes)} processes that ended",
        f"disk     {disk['hits']} hits, {disk['misses']} misses, {disk['evicted']} entries evicted",
        f"schedule {schedules['hits']} hits, {schedules['recalled']} recalled from disk, {schedules['made']} made",
    ]
    if why:
        lines.append(f"misses   {', '.join(f'{number} {kind}' for kind, number in why.most_common())}")
    if last:
        lines.append(f"last     {last}")
    return lines
