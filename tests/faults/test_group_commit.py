"""One bad member of a group of outcomes: it is written by itself, or later, and the others are written now."""

from __future__ import annotations

from django.db import connection, connections, transaction

from lab.models import Chore, Lot
from statemachine_fields.machine.verify import Verifier
from tests.faults.harness import check_invariants, create_chores
from tests.faults.test_poison import wait_until_done
from tests.patience import eventually

#: As much harm as a database can do to one row of many.
RAISES = """
    CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS $$
    BEGIN
        IF NEW.name = '7' AND NEW.status = 'DONE' THEN RAISE EXCEPTION 'not this one'; END IF;
        RETURN NEW;
    END $$;
    CREATE TRIGGER refuse BEFORE UPDATE ON lab_chore FOR EACH ROW EXECUTE FUNCTION refuse();"""


def test_a_row_that_a_constraint_refuses_does_not_harm_its_neighbours(start_worker):
    """#19, CHECK. I2, I5: the others are written, and of this one that it could not be."""
    lots = Lot.objects.bulk_create([Lot(amount=0 if place == 50 else 1) for place in range(100)])
    worker = start_worker(labels=["lab.Lot"], settings={"POLL_SECONDS": 0.05})
    eventually(lambda: Lot.objects.filter(status="SOLD").count() == 99, "the others are sold")
    row = eventually(lambda: Lot.objects.filter(pk=lots[50].pk, status_failures=1).first(), "the bad one has failed")
    assert row.status_error.startswith("The move to 'SOLD' could not be written. IntegrityError:")
    assert (row.status, row.status_lease_owner, row.status_crashes) == ("OPEN", "", 0)
    assert worker.terminate() == 0
    assert not list(Verifier(Lot.states._meta).findings())


def test_a_row_that_a_trigger_refuses_does_not_harm_its_neighbours(start_worker):
    """#19, a trigger that raises. I2, I5."""
    with connection.cursor() as cursor:
        cursor.execute(RAISES)
    chores = create_chores(100, status="DOING")
    worker = start_worker()
    wait_until_done(set(chores) - {chores[7]})
    row = eventually(lambda: Chore.objects.filter(pk=chores[7], status_failures=1).first(), "the bad one has failed")
    assert "not this one" in row.status_error
    assert worker.terminate() == 0
    check_invariants(moves=99, released=True)


def test_a_row_that_somebody_has_locked_is_written_when_he_is_done(start_worker):
    """#19, a lock that another session holds, for longer than the lease. I1, I2, I3: nobody waits, and nothing is lost."""
    chores = create_chores(100, status="DOING", script=lambda _: {"marks": True})
    worker = start_worker(pause={"commit.before": 1}, settings={"LEASE_SECONDS": 1.0})
    worker.paused_at("commit.before")
    held = Chore.states.leased().first()
    with transaction.atomic():
        Chore.objects.select_for_update().get(pk=held.pk)
        worker.go("commit.before")
        other = connections.create_connection("default")
        try:
            eventually(lambda: count(other, "DONE") == 99, "the others are done")
            with other.cursor() as cursor:
                cursor.execute("SELECT pg_sleep(1.2)")
            assert count(other, "DOING") == 1
        finally:
            other.close()
    wait_until_done(chores)
    assert worker.terminate() == 0
    check_invariants(moves=100, terminal=True, released=True)


def count(session, status):
    with session.cursor() as cursor:
        cursor.execute("SELECT count(*) FROM lab_chore WHERE status = %s", [status])
        return cursor.fetchone()[0]
