"""`gradlet cache`: what the kernel cache on disk holds, and emptying it."""

from __future__ import annotations

import argparse

from gradlet.base.report import human_bytes


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """`stats` (the default) or `clear`."""
    parser.add_argument("action", nargs="?", default="stats", choices=("stats", "clear"), help="what to do (stats)")


def run(arguments: argparse.Namespace) -> int:
    """Show or empty the cache. Kernels that are gone are compiled again when needed."""
    from gradlet.runtime import diskcache

    found = diskcache.stats()
    if arguments.action == "clear":
        print(
            f"removed {diskcache.clear()} of {found.entries} entries ({human_bytes(found.bytes)}) from {found.folder}"
        )
        return 0
    print(f"folder   {found.folder}")
    print(f"entries  {found.entries}")
    print(f"size     {human_bytes(found.bytes)} (pruned above {human_bytes(diskcache.MAX_BYTES)})")
    return 0
