"""A migration that alters a table under prepared statements: the moves of processes that are already running go on."""

from __future__ import annotations

import pytest
from django.db import connection, transaction

from lab.models import Chore, Stamped

pytestmark = [
    pytest.mark.django_db(transaction=True),
    pytest.mark.skipif(connection.vendor != "postgresql", reason="only PostgreSQL has statements that it prepares"),
]

WIDER = [
    (Stamped, "status", "varchar(80)", "varchar(50)"),
    (Stamped, "status_sequence", "bigint", "integer"),
    (Chore, "status", "varchar(80)", "varchar(50)"),
    (Chore, "status_lease_token", "numeric", "bigint"),
]


@pytest.fixture
def alter():
    """Return what alters the type of a column, on a connection of its own; it is put back at the end."""
    back = []
    other = connection.copy()

    def alter(table: str, column: str, wider: str, usual: str) -> None:
        with other.cursor() as cursor:
            cursor.execute(f"ALTER TABLE {table} ALTER {column} TYPE {wider}")
        back.append(f"ALTER TABLE {table} ALTER {column} TYPE {usual}")

    yield alter
    connection.close()
    with other.cursor() as cursor:
        for statement in back:
            cursor.execute(statement)
    other.close()


def move_by_the_second_look(row, *states):
    """Move the row with an instance that believes that it is elsewhere."""
    for state in states:
        stale = type(row).objects.get(pk=row.pk)
        type(row).objects.get(pk=row.pk).states.force_transition_to(state, reason="to be elsewhere")
        stale.states.force_transition_to(state, reason="after a second look")


@pytest.mark.parametrize(("model", "column", "wider", "usual"), WIDER)
def test_moves_go_on_after_either_look(alter, caplog, model, column, wider, usual):
    row = model.objects.create()
    connection.close()
    move_by_the_second_look(row, "DONE")
    alter(model._meta.db_table, column, wider, usual)
    alter(model.states.transition_model._meta.db_table, "sequence", "bigint", "integer")
    move_by_the_second_look(row, "NEW", "DONE")
    assert row.states.history.count() == 6
    assert caplog.records == []


def test_moves_go_on_within_a_transaction(alter):
    row = Stamped.objects.create()
    connection.close()
    move_by_the_second_look(row, "DONE")
    alter("lab_stamped", "status", "varchar(80)", "varchar(50)")
    alter("lab_stampedstatetransition", "sequence", "bigint", "integer")
    with transaction.atomic():
        move_by_the_second_look(row, "NEW")
    assert row.states.history.count() == 4
