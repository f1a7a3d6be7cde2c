"""What the server plans: once for a row at a time, and by an index whatever the table looked like then."""

from __future__ import annotations

import pytest
from django.db import connection, connections

if connection.vendor != "postgresql":
    pytest.skip("only PostgreSQL keeps plans", allow_module_level=True)

from lab.models import Chore, Relay
from statemachine_fields.db import prepared
from statemachine_fields.db.own import Limits, own_connection
from statemachine_fields.machine.ids import uuid7_many
from tests.worker.rows import claim, elsewhere, lane_of

pytestmark = pytest.mark.django_db(transaction=True)

PLANS = "SELECT sum(custom_plans), sum(generic_plans) FROM pg_prepared_statements WHERE statement LIKE %s"
#: After so many plans the server asks itself whether one for all would do.
TRIED = 5


def as_worker(work, role="claimer"):
    """Run something on a connection as a worker has it."""

    def run():
        connections["default"].close()
        connections["default"] = own_connection("default", role, Limits(statement=10, lock=1))
        return work(connections["default"])

    return elsewhere(run)


def create(number):
    with connection.cursor() as cursor:
        cursor.execute(
            "INSERT INTO lab_chore (name, note, status, status_next_at, script)"
            " SELECT '', '', 'NEW', now() - n * interval '1 s', '{}' FROM generate_series(1, %s) AS n",
            [number],
        )


def plans(using, text):
    with using.cursor() as cursor:
        cursor.execute(PLANS, [f"%{text}%"])
        return cursor.fetchone()


def given(leases, to_status):
    number = len(leases)
    return {
        "key": [lease.key for lease in leases],
        "was_lease_token": [lease.token for lease in leases],
        "was_status": [lease.status for lease in leases],
        "status": [to_status] * number,
        "next_at": [None] * number,
        "record": uuid7_many(number),
        "metadata": ["{}"] * number,
    }


def test_a_few_rows_are_claimed_by_one_plan():
    """Of many: the server would take a number that it does not know for a tenth of them, and plan for each that it does."""
    create(20_000)
    with connection.cursor() as cursor:
        cursor.execute("ANALYZE lab_chore")

    def work(using):
        taken = [claim(lane_of(Chore), 1) for _ in range(TRIED + 10)]
        return sum(map(len, taken)), plans(using, "WITH due")

    assert as_worker(work) == (TRIED + 10, (TRIED, 10))


@pytest.mark.parametrize("number", [1, 20])
def test_rows_are_written_by_one_plan_however_many_there_are(number):
    Relay.objects.bulk_create([Relay() for _ in range(10 * number)])

    def work(using):
        lane = lane_of(Relay)
        for _ in range(10):
            leases = claim(lane, number)
            assert lane.enter(given(leases, "TWO")) == {lease.key for lease in leases}
        return plans(using, "INSERT INTO")

    assert as_worker(work, "committer") == (0, 10)


def test_a_plan_that_was_made_for_an_empty_table_finds_rows_by_an_index():
    """An empty table costs nothing to read, and the server keeps that plan until somebody analyzes the table."""
    with connection.cursor() as cursor:
        cursor.execute("VACUUM ANALYZE lab_chore")

    def work(using):
        lane = lane_of(Chore)
        for _ in range(TRIED + 2):
            assert claim(lane, 1) == []
        elsewhere(lambda: create(20_000))
        before = read(using)
        assert len(claim(lane, 1)) == 1
        return read(using) - before

    assert as_worker(work) < 100


def read(using):
    """Return how many rows of the table this connection has read in order."""
    with using.cursor() as cursor:
        cursor.execute("SELECT pg_stat_get_xact_tuples_returned('lab_chore'::regclass)")
        (rows,) = cursor.fetchone()
        cursor.execute("SELECT pg_stat_force_next_flush()")
        cursor.execute("SELECT seq_tup_read FROM pg_stat_user_tables WHERE relname = 'lab_chore'")
        return rows + cursor.fetchone()[0]


@pytest.mark.parametrize(
    ("role", "settings"),
    [
        ("claimer", ("off", "off", "auto")),
        ("committer", ("off", "off", "force_generic_plan")),
        ("writer", ("on", "on", "auto")),
    ],
)
def test_only_those_who_send_nothing_else_are_bound_to_indexes(role, settings):
    """Without compiling: what is read in order all the same, as by a trigger, would seem dear enough for that."""

    def asked(using):
        with using.cursor() as cursor:
            cursor.execute(
                "SELECT current_setting('enable_seqscan'), current_setting('jit'), current_setting('plan_cache_mode')"
            )
            return cursor.fetchone()

    assert as_worker(asked, role) == settings


def test_a_worker_of_many_machines_keeps_all_its_statements():
    def work(using):
        for number in range(150):
            prepared.run(using, f"SELECT {number}", ())
        return plans(using, "SELECT")

    assert as_worker(work) == (0, 150)
