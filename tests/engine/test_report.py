"""What DEBUG shows of launches."""

from __future__ import annotations

import pytest

from gradlet import Tensor
from gradlet.base.settings import scope
from gradlet.codegen.launch import lower_launch
from gradlet.engine.compile import build_kernel
from gradlet.engine.report import explained, explanations, stages_line
from gradlet.schedule.explain import Explanation
from gradlet.target.target import AVX2
from tests.codegen import launches


def test_the_stages_of_a_launch_on_one_line() -> None:
    assert stages_line(lower_launch(launches.mixed().sink, AVX2)) == (
        "2 scale_40, (to_int > sum_int) x 5 blocks; then tail"
    )


@pytest.mark.parametrize(
    ("level", "shown", "hidden"),
    [
        (2, [], ["body", "define"]),
        (3, ["--- mixed: 2 scale_40", "body 3", "--- tail:", "opts:"], ["define void"]),
        (4, ["--- to_int", "define void @mixed_stage1"], ["SINK void"]),
        (5, ["define void @mixed_stage0", "SINK void", "END void", "BodyUse(body=0, slots=(-1, 2)"], ["pass "]),
        (6, ["pass simplify index math"], []),
    ],
)
def test_debug_levels(level: int, shown: list[str], hidden: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with scope(DEBUG=level):
        build_kernel(launches.mixed().sink, "CPU")
    text = capsys.readouterr().out
    for words in shown:
        assert words in text
    for words in hidden:
        assert words not in text


@pytest.mark.parametrize("level", [2, 3])
def test_schedules_are_explained(level: int, capsys: pytest.CaptureFixture[str]) -> None:
    x = Tensor([[1.0, 2.0, 3.0, 4.0, 5.0]]) + level
    with scope(DEBUG=level):
        for _ in range(2):
            (x * 3.0).realize()
    assert capsys.readouterr().out.count("schedule: 1 launch of 1 kernel, ") == (level == 3)


def test_a_listener_gets_explanations_instead_of_the_screen(capsys: pytest.CaptureFixture[str]) -> None:
    found: list[Explanation] = []
    x = Tensor([[1.0, 2.0, 3.0, 4.0, 5.0, 6.0]])
    with scope(DEBUG=3), explained(found.append):
        (x * 5.0).realize()
        (x * 7.0).schedule()
    assert explanations() is None
    assert len(found) == 2 and "schedule: " not in capsys.readouterr().out
