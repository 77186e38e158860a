"""The target of this machine."""

from __future__ import annotations

import pytest


def test_scratch_fits_the_stack_of_a_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    import resource

    from gradlet.device.cpu import target as cpu_target

    for limit, most in ((1 << 20, 1 << 18), (resource.RLIM_INFINITY, 1 << 19), (8 << 20, 2 << 20)):
        monkeypatch.setattr(resource, "getrlimit", lambda which, limit=limit: (limit, limit))
        cpu_target.forget_facts()
        assert 0 < cpu_target.host_target().scratch_bytes <= most
    monkeypatch.undo()
    cpu_target.forget_facts()
