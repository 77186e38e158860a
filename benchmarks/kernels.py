"""Single kernels and models beside the best that each library has, with the goal of every row and whether it is met.

    python benchmarks/kernels.py --peers PEERS_PYTHON                        everything, one thread and all cores
    python benchmarks/kernels.py --peers PEERS_PYTHON --only gemm,conv_3x3   names, or how they begin

Each framework is a process of its own, rounds are interleaved, results compared first; harness.py has the guards. A
ratio is gradlet's time by that of the fastest peer, of medians and of minima; a row meets its goal with the median.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass

from harness import MeasurementError, Quiet, Row, Worker, measure, milliseconds, rate

TORCH = ("torch",)
PRODUCT = ("torch", "numpy", "jax", "onnxruntime")
CONVOLUTION = ("torch", "torch channels last", "onnxruntime", "openvino")
FUSED = ("torch", "torch.compile", "jax")


@dataclass(frozen=True)
class Wanted:
    """What a row is measured against: the peers, the ratio to reach, and the one that has to be reached."""

    peers: tuple[str, ...]
    goal: float
    floor: float


ROWS: dict[str, Wanted] = {
    "gemm_512": Wanted(PRODUCT, 0.97, 1.05),
    "gemm_512_t": Wanted(PRODUCT, 0.97, 1.05),
    "gemm_1024": Wanted(PRODUCT, 0.97, 1.05),
    "gemm_1024_t": Wanted(PRODUCT, 0.97, 1.05),
    "gemm_2048": Wanted(PRODUCT, 1.0, 1.05),
    "gemm_2048_t": Wanted(PRODUCT, 1.0, 1.05),
    "gemm_1000x77x513": Wanted(PRODUCT, 0.8, 1.0),
    "gemm_777x333x555": Wanted(PRODUCT, 0.8, 1.0),
    "gemm_64x64x16384": Wanted(PRODUCT, 0.8, 1.0),
    "gemm_8x4096x4096": Wanted(PRODUCT, 0.6, 0.8),
    "gemm_8x4096x4096_t": Wanted(PRODUCT, 0.6, 0.8),
    "gemv": Wanted(("torch", "numpy", "jax"), 1.0, 1.1),
    "vecmat": Wanted(("torch", "numpy", "jax"), 0.95, 1.1),
    "gemm_bf16_1024": Wanted(("jax",), 1.0, 1.3),
    "gemv_int8": Wanted(("read",), 1 / 0.88, 1 / 0.75),
    "gemv_q4": Wanted(("read",), 1 / 0.85, 1 / 0.75),
    "conv_3x3": Wanted(CONVOLUTION, 0.9, 1.1),
    "conv_1x1": Wanted(CONVOLUTION, 0.9, 1.1),
    "conv_depthwise": Wanted(CONVOLUTION, 0.9, 1.1),
    "conv_stride": Wanted(CONVOLUTION, 0.9, 1.1),
    "conv_first": Wanted(CONVOLUTION, 0.9, 1.1),
    "softmax_4096": Wanted(FUSED, 0.7, 0.9),
    "norm_1024": Wanted(FUSED, 0.55, 0.9),
    "sum_64M": Wanted(("torch", "torch.compile", "jax"), 0.91, 1.0),
    "argmax": Wanted(("numpy", "torch", "torch.compile"), 0.83, 1.0),
    "cumsum": Wanted(("torch", "torch.compile", "numpy"), 0.28, 1.0),
    "transpose": Wanted(("torch", "torch.compile", "jax"), 0.22, 1.0),
    "embedding": Wanted(("torch", "torch.compile", "numpy"), 0.91, 1.0),
    "chain_cheap": Wanted(FUSED, 0.75, 1.0),
    "chain_tanh": Wanted(FUSED, 0.4, 1.0),
    "sort_1M": Wanted(TORCH, 1.0, 1.3),
    "top_64": Wanted(TORCH, 1.0, 1.3),
    "resnet18_bs1": Wanted((*CONVOLUTION, "torch.compile"), 1.0, 1.3),
    "resnet18_bs8": Wanted((*CONVOLUTION, "torch.compile"), 1.0, 1.3),
    "gpt2_decode": Wanted(TORCH, 0.9, 1.1),
    "gpt2_prefill": Wanted(TORCH, 0.9, 1.1),
    "digits_step": Wanted(("torch", "torch.compile"), 0.9, 1.15),
}
HEAVY: tuple[str, ...] = ("resnet18_bs8", "gpt2_prefill", "digits_step")  # rows of whole models, which get fewer rounds


@dataclass(frozen=True)
class Verdict:
    """A row with its fastest peer."""

    row: Row
    wanted: Wanted

    @property
    def best_peer(self) -> str | None:
        """The peer with the smallest median."""
        measured = [n for n in self.row.timings if n != "gradlet"]
        return min(measured, key=lambda n: self.row.timings[n].median, default=None)

    def ratio(self, of_minima: bool = False) -> float | None:
        """Ours by the fastest peer's, of medians, or of minima by the smallest of those."""
        ours, name = self.row.timings.get("gradlet"), self.best_peer
        if ours is None or name is None:
            return None
        if of_minima:
            return ours.best / min(t.best for n, t in self.row.timings.items() if n != "gradlet")
        return ours.median / self.row.timings[name].median

    def mark(self) -> str:
        """Empty when the goal is met, else how far off."""
        found = self.ratio()
        if found is None:
            return "**not measured**"
        if found <= self.wanted.goal:
            return ""
        return "misses the goal" if found <= self.wanted.floor else "**MISSES THE FLOOR**"


def table(verdicts: Sequence[Verdict]) -> str:
    """The rows as markdown."""
    lines = [
        "| row | threads | gradlet ms | rate | best peer | its ms | ratio | of minima | goal | floor | | other peers |",
        "|---|---|---|---|---|---|---|---|---|---|---|---|",
    ]
    for verdict in verdicts:
        row, name = verdict.row, verdict.best_peer
        ours = row.timings.get("gradlet")
        others = ", ".join(f"{n} {t.median * 1e3:.4g}" for n, t in row.timings.items() if n not in ("gradlet", name))
        medians, minima = verdict.ratio(), verdict.ratio(of_minima=True)
        cells = [
            row.title, str(row.threads), milliseconds(ours) if ours else "failed", rate(row, ours), name or "-",
            milliseconds(row.timings[name]) if name else "-",
            "-" if medians is None else f"{medians:.2f}", "-" if minima is None else f"{minima:.2f}",
            f"{verdict.wanted.goal:.3g}", f"{verdict.wanted.floor:.3g}", verdict.mark(), others or "-",
        ]  # fmt: skip
        lines.append("| " + " | ".join(cells) + " |")
    failures = [f"* {v.row.title}, {v.row.threads} threads: {t}" for v in verdicts for t in v.row.failures.values()]
    return "\n".join(lines + ([""] + failures if failures else []))


def scaling(verdicts: Sequence[Verdict]) -> str:
    """How much faster the rows that compute are on all cores."""
    one = {v.row.title: v.row.timings["gradlet"] for v in verdicts if v.row.threads == 1 and "gradlet" in v.row.timings}
    gains = [
        f"{v.row.title} {one[v.row.title].best / v.row.timings['gradlet'].best:.2f}"
        for v in verdicts
        if v.row.threads > 1 and v.row.flops and v.row.title in one and "gradlet" in v.row.timings
    ]
    return "Speed-up by all cores, of minima: " + "; ".join(gains) + "." if gains else ""


def chosen(prefixes: str) -> list[str]:
    """Rows whose name is one of these or begins with one."""
    wanted = tuple(p for p in prefixes.split(",") if p)
    return [name for name in ROWS if not wanted or name.startswith(wanted)]


def run_table(
    peers: str | None, names: Sequence[str], threads: Sequence[int], rounds: int, without: Sequence[str] = ()
) -> str:
    """Measure these rows and return the table with what belongs under it."""
    verdicts: list[Verdict] = []
    versions: dict[str, str] = {}
    quiet = Quiet()
    for count in threads:
        workers: dict[str, Worker] = {}
        try:
            for name in names:
                wanted = ROWS[name]
                frameworks = ["gradlet", *(p for p in wanted.peers if peers and p not in without)]
                for framework in frameworks:
                    if framework not in workers:
                        python = sys.executable if framework == "gradlet" else str(peers)
                        workers[framework] = Worker(framework, python, count)
                        try:
                            versions[framework] = workers[framework].ask(do="describe")["version"]
                        except MeasurementError as error:
                            versions[framework] = f"({error})"
                used = [workers[f] for f in frameworks]
                found = measure(used, name, min(rounds, 3) if name in HEAVY else rounds, quiet)
                verdicts.append(Verdict(found, wanted))
                print(table(verdicts[-1:]).split("\n", 2)[2], file=sys.stderr, flush=True)
        finally:
            for worker in workers.values():
                worker.stop()
    missed = [v for v in verdicts if v.mark()]
    below = [v for v in missed if v.ratio() is None or (v.ratio() or 0) > v.wanted.floor]
    noise = f" {quiet.disturbed} of {quiet.rounds} runs had another busy process beside them." * (quiet.disturbed > 0)
    said = ", ".join(f"{n} {v}" for n, v in versions.items())
    return (
        f"{table(verdicts)}\n\nms: median (minimum) of {rounds} rounds. {said}.{noise}\n\n"
        f"{len(verdicts) - len(missed)} of {len(verdicts)} rows meet the goal, {len(below)} miss the floor. "
        f"{scaling(verdicts)}"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--peers", help="python that has the peers; without it gradlet alone")
    parser.add_argument("--only", default="", help=f"names or beginnings of names of rows: {', '.join(ROWS)}")
    parser.add_argument("--without", default="", help="peers to leave out")
    parser.add_argument("--rounds", type=int, default=5, help="interleaved rounds (default 5)")
    both = sorted({1, len(os.sched_getaffinity(0))})
    parser.add_argument("--threads", default=",".join(map(str, both)), help="thread counts (default: 1 and all cores)")
    parsed = parser.parse_args()
    names = chosen(parsed.only)
    if not names:
        parser.error(f"no row is called {parsed.only}")
    threads = [int(n) for n in parsed.threads.split(",")]
    print(run_table(parsed.peers, names, threads, parsed.rounds, parsed.without.split(",")))


if __name__ == "__main__":
    main()
