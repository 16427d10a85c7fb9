"""For tests within one process: nothing there outlives it, so no disk is waited for."""

import os

import pytest


@pytest.fixture(autouse=True)
def no_sync(monkeypatch: pytest.MonkeyPatch) -> None:
    """A sync costs milliseconds, and seconds on a busy disk; that it is asked for is tested by tests that patch it themselves."""
    monkeypatch.setattr(os, "fsync", lambda handle: None)
    monkeypatch.setattr(os, "fdatasync", lambda handle: None)
