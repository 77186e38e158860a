"""`gradlet flame`: a script runs as it would alone, and a picture shows where its time went."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree

import pytest

from gradlet.cli.flame import Box, picture
from gradlet.cli.main import EXIT_USER_ERROR, main

ROOT = Path(__file__).resolve().parents[2]
SVG = "{http://www.w3.org/2000/svg}"
BUSY = """
import sys, time
def spin(seconds):
    begin = time.process_time()
    while time.process_time() - begin < seconds: pass
def outer():
    spin(0.3)
spin(0.1)
outer()
print("arguments", sys.argv[1:], __name__)
sys.exit(3)
"""


def test_boxes_are_as_wide_as_their_share() -> None:
    root = Box()
    for stack, times in (([("a", "x.py"), ("b<", "x.py")], 30), ([("a", "x.py")], 10), ([("c", "y.py")], 60)):
        for _ in range(times):
            root.add(stack)
    drawn = ElementTree.fromstring(picture(root, 2.0))
    found = {}
    for group in drawn.iter(f"{SVG}g"):
        title, rect = group.find(f"{SVG}title"), group.find(f"{SVG}rect")
        assert title is not None and title.text is not None and rect is not None
        found[title.text.split(" (")[0]] = (float(rect.attrib["width"]), int(rect.attrib["y"]), title.text)
    whole = found["all"][0]
    for name, share, row in (("a", 0.4, 1), ("b<", 0.3, 2), ("c", 0.6, 1)):
        width, y, title = found[name]
        assert width == pytest.approx(whole * share, abs=1) and y == 17 * row
        assert f"{2000 * share:.0f} ms, {100 * share:.1f} %" in title


def test_nothing_sampled_is_a_picture_too() -> None:
    assert len(list(ElementTree.fromstring(picture(Box(), 0.0)).iter(f"{SVG}rect"))) == 1


def test_a_script_runs_as_alone(tmp_path: Path) -> None:
    script, output = tmp_path / "busy.py", tmp_path / "out.svg"
    script.write_text(BUSY)
    done = subprocess.run(
        [sys.executable, "-m", "gradlet", "flame", "-o", str(output), str(script), "--fast", "7"],
        cwd=tmp_path, env={**os.environ, "PYTHONPATH": str(ROOT)}, capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == 3 and done.stdout == "arguments ['--fast', '7'] __main__\n"
    assert str(output) in done.stderr
    shares = {
        name: float(share)
        for name, share in re.findall(r"<title>(\w+) \(busy.py\): \d+ ms, ([\d.]+) %", output.read_text())
    }
    assert 50 < shares["outer"] < 95 and "cli/" not in output.read_text()


def test_mistakes_are_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["flame", str(tmp_path / "none.py")]) == EXIT_USER_ERROR
    assert "there is no file" in capsys.readouterr().err
    (tmp_path / "empty.py").write_text("")
    assert main(["flame", "-o", str(tmp_path / "no" / "f.svg"), str(tmp_path / "empty.py")]) == EXIT_USER_ERROR
    assert "cannot be written" in capsys.readouterr().err
