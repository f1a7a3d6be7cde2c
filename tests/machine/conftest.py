"""A row that most tests of moves begin with."""

from __future__ import annotations

import pytest

from lab.models import Stamped


@pytest.fixture
def row() -> Stamped:
    return Stamped.objects.create(name="a")
