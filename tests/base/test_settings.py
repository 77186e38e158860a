"""Settings: read once from the environment, checked, restored; the cache keys follow the rows."""

from __future__ import annotations

import subprocess
import sys

import pytest

from gradlet.base import settings
from gradlet.base.errors import SettingError
from gradlet.base.settings import DEBUG, NOOPT, SETTINGS, Context, Setting, check_all, codegen_key, schedule_key, scope


def fresh(name: str) -> Setting:
    """The row as it is before its first use."""
    row = SETTINGS[name]
    return Setting(row.name, row.default, row.doc, row.affects, row.allowed)


@pytest.mark.parametrize("name", sorted(SETTINGS))
def test_default_is_a_good_value(name: str) -> None:
    row = SETTINGS[name]
    assert row.check(row.default) == row.default
    assert row.affects in ("codegen", "schedule", "runtime", "debug")
    assert row.doc


@pytest.mark.parametrize(
    ("name", "text", "good"),
    [
        ("DEBUG", "7", "an integer from 0 to 6"),
        ("DEBUG", "-1", "an integer from 0 to 6"),
        ("DEBUG", "yes", "an integer from 0 to 6"),
        ("DEBUG", "1.5", "an integer from 0 to 6"),
        ("NOOPT", "2", "an integer from 0 to 1"),
        ("NUM_THREADS", "-2", "an integer from 0 to 1024"),
        ("CPU_FEATURES", "avx1024", "one of avx512, avx2, sse, neon"),
    ],
)
def test_bad_environment_value_names_the_good_ones(
    monkeypatch: pytest.MonkeyPatch, name: str, text: str, good: str
) -> None:
    monkeypatch.setenv(name, text)
    with pytest.raises(SettingError) as caught:
        _ = fresh(name).value
    assert f"{name}=" in str(caught.value) and text in str(caught.value) and good in str(caught.value)


def test_environment_value_is_read_and_empty_means_default(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DEBUG", "3")
    assert fresh("DEBUG").value == 3
    monkeypatch.setenv("DEBUG", "")
    assert fresh("DEBUG").value == 0
    monkeypatch.setenv("CPU_FEATURES", "avx2")
    assert fresh("CPU_FEATURES").value == "avx2"


def test_check_all_refuses_a_bad_environment_at_start() -> None:
    code = "from gradlet.base.settings import check_all; check_all()"
    done = subprocess.run([sys.executable, "-c", code], env={"DEBUG": "loud"}, capture_output=True, text=True)
    assert done.returncode != 0
    assert "DEBUG='loud': expected an integer from 0 to 6" in done.stderr


def test_scope_restores_after_a_block_and_after_an_exception() -> None:
    with scope(DEBUG=0, NOOPT=0):
        with scope(DEBUG=2, NOOPT=1):
            assert (DEBUG.value, NOOPT.value) == (2, 1)
            assert DEBUG >= 2 and DEBUG > 1 and not DEBUG > 2 and int(DEBUG) == 2 and bool(NOOPT)
        assert (DEBUG.value, NOOPT.value) == (0, 0)
        with pytest.raises(ZeroDivisionError), scope(DEBUG=5):
            _ = 1 // 0
        assert DEBUG.value == 0


def test_scope_changes_nothing_when_one_of_its_values_is_bad() -> None:
    with scope(DEBUG=1):
        with pytest.raises(SettingError, match="NOOPT=9"), scope(DEBUG=2, NOOPT=9):
            pass
        assert DEBUG.value == 1
        with pytest.raises(SettingError, match="unknown setting 'LOUD'; known: .*DEBUG"), scope(DEBUG=2, LOUD=1):
            pass
        assert DEBUG.value == 1


def test_wrong_type_is_refused() -> None:
    with pytest.raises(SettingError, match="DEBUG='2'"), scope(DEBUG="2"):
        pass
    with pytest.raises(SettingError, match="DEV=3"), scope(DEV=3):
        pass


def test_bool_is_taken_as_an_integer_so_that_keys_stay_equal() -> None:
    with scope(NOOPT=1):
        key = codegen_key()
    with scope(NOOPT=True):
        assert codegen_key() == key
        assert type(NOOPT.value) is int


def test_context_nests_and_decorates() -> None:
    block = Context(DEBUG=4)
    with scope(DEBUG=0):
        with block:
            with Context(DEBUG=1):
                assert DEBUG.value == 1
            with block:
                assert DEBUG.value == 4
            assert DEBUG.value == 4
        assert DEBUG.value == 0

        @Context(DEBUG=6)
        def loud(extra: int) -> int:
            """Documented."""
            return int(DEBUG) + extra

        assert loud(1) == 7
        assert loud.__doc__ == "Documented."
        assert DEBUG.value == 0


def test_cache_keys_hold_exactly_the_rows_that_say_so() -> None:
    assert {name for name, _ in codegen_key()} == {r.name for r in SETTINGS.values() if r.affects == "codegen"}
    assert {name for name, _ in schedule_key()} >= {name for name, _ in codegen_key()}
    with scope(NOOPT=0):
        plain = codegen_key()
        with scope(DEBUG=3):
            assert codegen_key() == plain
        with scope(NOOPT=1):
            assert codegen_key() != plain


def test_every_setting_is_in_the_table() -> None:
    rows = [v for v in vars(settings).values() if isinstance(v, Setting)]
    assert {r.name for r in rows} == set(SETTINGS)
    check_all()
