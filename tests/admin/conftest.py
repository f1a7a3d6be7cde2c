"""Rows for tests of the admin, what happens to them behind its back, and what their model might declare."""

from __future__ import annotations

from dataclasses import replace

import pytest

from lab.models import Dossier
from statemachine_fields.admin.base import MachineAdmin


@pytest.fixture
def dossier():
    return Dossier.objects.create(title="Case 7")


@pytest.fixture
def meanwhile(monkeypatch):
    """A function that lets something happen after the next request has loaded its row."""

    def meanwhile(happen):
        def load(self, request, object_id):
            row = given(self, request, object_id)
            monkeypatch.setattr(MachineAdmin, "row_or_404", given)
            happen()
            return row

        given = MachineAdmin.row_or_404
        monkeypatch.setattr(MachineAdmin, "row_or_404", load)

    return meanwhile


@pytest.fixture
def declare(monkeypatch):
    """A function that says more of transitions of a dossier than its model does."""

    def declare(*transitions):
        graph = Dossier.states._meta.graph
        details = {**graph.details, **{(source, each.to): each for source, each in transitions}}
        monkeypatch.setattr(Dossier.states._meta, "graph", replace(graph, details=details))

    return declare
