"""`gradlet cache`: what the kernel cache on disk holds, the schedules that searches found, and emptying it."""

from __future__ import annotations

import argparse

from gradlet.base.report import human_bytes


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """`stats` (the default), `searches` or `clear`."""
    actions = ("stats", "searches", "clear")
    parser.add_argument("action", nargs="?", default="stats", choices=actions, help="what to do (stats)")


def run(arguments: argparse.Namespace) -> int:
    """Show or empty the cache. Kernels that are gone are compiled again when needed, schedules searched again."""
    from gradlet.runtime import diskcache

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
        return 0
    print(f"folder   {found.folder}")
    print(f"entries  {found.entries}, {found.searches} of them results of searches (gradlet cache searches)")
    print(f"size     {human_bytes(found.bytes)} (pruned above {human_bytes(diskcache.MAX_BYTES)})")
    return 0
