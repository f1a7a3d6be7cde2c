"""Rows of other shapes, whose workers are killed again and again: other keys, two tables, a proxy, partitions."""

from __future__ import annotations

import time

import pytest
from django.db import connection, transaction

from lab.models import Barrel, Express, Shard, Sleeper, Tanker, Voucher, Wagon
from statemachine_fields.worker.models import RunStatistics
from tests.faults.harness import EXTENDED, check_invariants, execute, marks_of, wait_until_all
from tests.patience import eventually

ROWS, PAUSE = 300, 0.01
SECONDS = 3.0

#: Children with the whole of their rows: bulk_create() does not write to two tables.
IN_TWO_TABLES = (Tanker, Sleeper)


def create(model):
    keys = [{"code": f"ключ {place:03} '\"{{}}"} if model is Voucher else {} for place in range(ROWS)]
    rows = [model(pause=PAUSE, **key) for key in keys]
    if model not in IN_TWO_TABLES:
        model.objects.bulk_create(rows)
        return
    with transaction.atomic():
        for row in rows:
            row.save()


def split_into_partitions(model):
    """Put a table that is partitioned by the hash of its key in the place of a model's."""
    name, audit = model._meta.db_table, model.states.transition_model._meta.db_table
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT conname, pg_get_constraintdef(oid) FROM pg_constraint WHERE contype = 'f' AND conrelid = %s::regclass",
            [audit],
        )
        ((foreign_key, definition),) = cursor.fetchall()
        cursor.execute(f"""
            ALTER TABLE {audit} DROP CONSTRAINT {foreign_key};
            ALTER TABLE {name} RENAME TO whole;
            CREATE TABLE {name} (LIKE whole INCLUDING ALL) PARTITION BY HASH (id);
            DROP TABLE whole;
            CREATE TABLE {name}_0 PARTITION OF {name} FOR VALUES WITH (MODULUS 3, REMAINDER 0);
            CREATE TABLE {name}_1 PARTITION OF {name} FOR VALUES WITH (MODULUS 3, REMAINDER 1);
            CREATE TABLE {name}_2 PARTITION OF {name} FOR VALUES WITH (MODULUS 3, REMAINDER 2);
            ALTER TABLE {audit} ADD CONSTRAINT {foreign_key} {definition}""")


@pytest.fixture
def rows():
    """Rows of all shapes, by model: the one that is served, and the one they were made as."""
    split_into_partitions(Shard)
    for model in (Barrel, Voucher, Shard, Tanker, Sleeper, Express):
        create(model)
    return {Barrel: ROWS, Voucher: ROWS, Shard: ROWS, Tanker: ROWS, Wagon: 2 * ROWS}


def test_rows_of_all_shapes_survive_the_deaths_of_their_workers(start_worker, chance, rows):
    """A UUID or a text for a key, a table of partitions, a row in two tables with the machine in either, and a proxy, whose
    machine is another's. I1, I2, I3, I8: as any other."""
    labels = [model._meta.label for model in rows]
    workers = [start_worker(labels=labels, settings=EXTENDED | {"MAX_CRASHES": 1000}) for _ in range(2)]
    for model in rows:
        eventually(model.states.transition_model.objects.exists, f"work on {model._meta.label} is under way")
    kill_again_and_again(workers, chance)
    for model in rows:
        wait_until_all("DONE", model=model)
    for worker in workers:
        assert worker.terminate() == 0
    for model, number in rows.items():
        check_invariants(model, moves=2 * number, terminal=True, released=True)
        keys = [str(key) for key in model.objects.values_list("pk", flat=True)]
        assert len(keys) == number
        ran = set(marks_of(model).values_list("key", "state"))
        assert ran == {(key, state) for key in keys for state in ("NEW", "DOING")}
        assert not model.objects.filter(status_failures__gt=0).exists()
    assert RunStatistics.objects.filter(kind="recovered").exists(), "no process that died had rows"
    for model in (Sleeper, Express):
        assert {sleeper.status for sleeper in model.objects.all()} == {"DONE"}
    assert Sleeper.objects.count() == ROWS
    parts = [execute(f"SELECT count(*) FROM ONLY lab_shard_{part}")[0][0] for part in range(3)]
    assert all(parts)
    assert sum(parts) == ROWS


def kill_again_and_again(workers, chance):
    until = time.monotonic() + SECONDS
    while time.monotonic() < until:
        time.sleep(chance.uniform(0.1, 0.4))
        if processes := sorted(pid for worker in workers for pid in worker.children()):
            workers[0].kill(chance.choice(processes))
