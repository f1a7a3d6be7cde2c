"""Which way PostgreSQL goes to the rows of a queue and of a priority, whatever it believes of the table."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from django.db import connection, transaction

from lab.models import Dispatch
from statemachine_fields.db.postgresql_claims import claim_text, claim_values
from statemachine_fields.db.postgresql_levels import survey_text
from statemachine_fields.worker.claim import Claimer
from statemachine_fields.worker.lease import lanes_of

pytestmark = [
    pytest.mark.django_db(transaction=True),
    pytest.mark.skipif(connection.vendor != "postgresql", reason="plans of PostgreSQL"),
]

#: More than any of these statements should read, and far less than the table has.
FEW_PAGES = 100
ROWS = 20_000

FILL = """
    INSERT INTO lab_dispatch (status, status_next_at, queue, priority, steps)
    SELECT '{status}', {next_at}, '{queue}', {priority}, '[]' FROM generate_series(1, {rows}) AS n"""


def execute(text, values=()):
    with connection.cursor() as cursor:
        cursor.execute(text, values)
        return cursor.fetchall() if cursor.description else []


def fill(rows, *, status="NEW", next_at="now() - make_interval(secs => 10 + n)", queue="main", priority="0"):
    execute(FILL.format(status=status, next_at=next_at, queue=queue, priority=priority, rows=rows))


@pytest.fixture(params=["analyzed", "never analyzed"])
def table(request):
    """A function to be called when the statistics are made, if any are."""
    execute("ALTER TABLE lab_dispatch SET (autovacuum_enabled = false)")
    yield lambda: execute("ANALYZE lab_dispatch") if request.param == "analyzed" else None
    execute("ALTER TABLE lab_dispatch RESET (autovacuum_enabled)")


def lane(*queues):
    (found,) = lanes_of([Dispatch.states._meta], queues or None)
    found.levels.learn(connection)
    return found


def pages(text, values):
    """Return how many pages a statement reads, which is undone."""
    with transaction.atomic():
        ((found,),) = execute(f"EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) {text}", values)
        transaction.set_rollback(True)
    plan = (json.loads(found) if isinstance(found, str) else found)[0]["Plan"]
    return plan["Shared Hit Blocks"] + plan["Shared Read Blocks"]


def pages_of_claim(served):
    wanted = replace(Claimer("me:1", 60).wanted(served, 10), ranks=served.levels.ranks, members=served.levels.members)
    table = served.bound.table
    return pages(claim_text(table, wanted, connection)[1], claim_values(table, wanted, connection))


def pages_of_survey(served):
    text, values = survey_text(served.bound.table, served.levels.members, connection)
    return pages(text, values)


@pytest.mark.parametrize("queues", [("rare",), ("rare", "none"), ("main",), ()])
def test_rows_of_a_queue_and_priority_that_the_statistics_do_not_know_are_found_at_once(table, queues):
    fill(ROWS)
    table()  # all rows are in one queue, and of one priority
    for priority in (0, 3):
        fill(2, queue="rare", priority=priority, next_at="now()")
    served = lane(*queues)
    assert pages_of_claim(served) < FEW_PAGES
    assert pages_of_survey(served) < FEW_PAGES


def test_rows_that_have_ended_are_not_read_in_search_of_one_that_is_due(table):
    """Many are due, by the statistics, and any of them would do: so one might look for it from the table's beginning."""
    fill(ROWS, status="DONE", next_at="NULL")
    fill(ROWS // 2)
    table()
    assert pages_of_claim(lane()) < FEW_PAGES


def test_nor_those_that_wait_for_a_later_time(table):
    fill(ROWS, next_at="now() + make_interval(secs => 60 + n)", priority="n - n / 5 * 5")
    fill(2, priority=7)
    table()
    assert pages_of_claim(lane()) < FEW_PAGES
    assert pages_of_claim(lane("main")) < FEW_PAGES
