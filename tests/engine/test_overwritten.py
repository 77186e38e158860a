"""A buffer written in place: expressions of its old values keep them, and building them again is a new computation."""

from __future__ import annotations

from gradlet import Tensor


def test_same_update_twice_runs_twice_although_a_reader_is_alive() -> None:
    w = Tensor([1.0, 2.0]).realize()
    w.assign(w * 2)
    reader = w + 1  # holds the first update
    w.realize()
    w.assign(w * 2)
    w.realize()
    assert w.tolist() == [4, 8]
    assert reader.tolist() == [3, 5]


def test_reader_of_the_old_value_computed_before_keeps_it() -> None:
    w = Tensor([1.0, 2.0]).realize()
    early = w + 10
    double = early * 2  # holds the expression, not its result
    early.realize()
    w.assign(w * 2)
    w.realize()
    again = w + 10
    assert double.tolist() == [22, 24]
    assert again.tolist() == [12, 14]
    assert early.tolist() == [11, 12]


def test_repeated_in_place_step_with_results_kept() -> None:
    w = Tensor([1.0]).realize()
    kept = []
    for _ in range(4):
        w.assign(w + 1)
        kept.append((w * 1.0).schedule())
        w.realize()
    assert w.item() == 5
