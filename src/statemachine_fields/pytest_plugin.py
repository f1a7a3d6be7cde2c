"""Fixtures for pytest. Name this module in `pytest_plugins` of your conftest.py; it needs pytest-django."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

__all__ = ["drain", "drain_timeouts"]


@pytest.fixture
def drain(db: None) -> Callable[..., Any]:
    """`statemachine_fields.testing.drain`, with the database."""
    from statemachine_fields.testing import drain

    return drain


@pytest.fixture
def drain_timeouts(drain: Callable[..., Any]) -> Callable[..., Any]:
    """The same, which lets time-outs happen as well."""
    return lambda *models_or_machines, **options: drain(*models_or_machines, timeouts=True, **options)
