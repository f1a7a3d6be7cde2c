"""Claimed rows are loaded as Django loads them, and one that cannot be loaded takes no neighbour along."""

from __future__ import annotations

import logging

import pytest
from django.db import connection, models
from django.db.models.base import ModelBase
from django.db.models.signals import post_init

from lab.models import Chore, Lot, Sensor
from statemachine_fields import State, StateMachine
from statemachine_fields.signals import lease_recovered, leases_claimed
from statemachine_fields.worker.claim import Claimer, load_rows
from tests.worker.rows import claim, claim_one, in_seconds, lane_of, let_lease_run_out, not_mariadb, set_clock

pytestmark = [pytest.mark.django_db, not_mariadb]


@pytest.fixture
def told(heard):
    """What was told by the two signals of a claim."""
    return heard(leases_claimed, lease_recovered, sender=Lot)


@pytest.mark.parametrize(
    ("model", "values"), [(Chore, {"name": "this", "script": {"NEW": ["raise", None]}}), (Sensor, {"name": "that"})]
)
def test_a_row_is_loaded_as_a_query_would(model, values, django_assert_num_queries):
    row = model.objects.create(**values)
    lease = claim_one(lane_of(model))
    with django_assert_num_queries(0):
        loaded = {field.attname: getattr(lease.instance, field.attname) for field in model._meta.concrete_fields}
    assert lease.instance == row
    fresh = model.objects.get()
    assert loaded == {name: getattr(fresh, name) for name in loaded}
    assert (lease.instance._state.db, lease.instance._state.adding) == ("default", False)


class Counting(ModelBase):
    """A metaclass that sees each instance, as one does that keeps a single instance of each row."""

    def __call__(self, *values, **named):
        made = super().__call__(*values, **named)
        made.made_with = values
        return made


class MadeItself:
    def __new__(cls, *values, **named):
        made = super().__new__(cls)
        made.made_with = values
        return made


@pytest.mark.parametrize(("bases", "kind"), [((MadeItself,), ModelBase), ((), Counting)], ids=["new", "metaclass"])
def test_a_class_with_a_way_of_its_own_to_make_instances_is_asked_for_each(bases, kind, isolated):
    states = [State("NEW", retry_after=60), State("DONE")]
    machine = StateMachine(states=states, initial="NEW", transitions={"NEW": ["DONE"]})
    machine.handler("NEW")(go := lambda self: "DONE")
    meta = type("Meta", (), {"app_label": "lab"})
    body = {"__module__": "lab.models", "Meta": meta, "states": machine, "go": go}
    model = kind("Made", (*bases, models.Model), body)
    attnames = [field.attname for field in model._meta.concrete_fields]
    row = tuple(range(len(attnames)))
    (instance,) = load_rows(lane_of(model), attnames, [row])
    assert instance.made_with == row


@pytest.mark.skipif(connection.vendor != "postgresql", reason="only PostgreSQL writes times in several styles")
@pytest.mark.parametrize("style", ["German, DMY", "SQL, MDY", "Postgres, DMY"])
def test_times_are_read_whatever_the_style_of_the_server(style):
    chore = Chore.objects.create()
    with connection.cursor() as cursor:
        cursor.execute("SET LOCAL datestyle = %s", [style])
    lease = claim_one(lane_of(Chore))
    assert lease.load_error is None
    assert lease.instance.status_changed_at == chore.status_changed_at


def test_a_lease_knows_what_its_row_says():
    chore = Chore.objects.create()
    set_clock(chore, failures=2, error="before")
    lease = claim_one(lane_of(Chore))
    assert (lease.key, lease.status, lease.sequence, lease.failures, lease.error) == (chore.pk, "NEW", 0, 2, "before")
    assert (lease.crashes, lease.is_trusted, lease.label) == (0, True, f"lab.Chore pk={chore.pk}")


def test_rows_come_in_the_order_of_their_urgency():
    rows = [Lot.objects.create(status=status) for status in ("OPEN", "URGENT", "BID", "URGENT")]
    for row, age in zip(rows, (50, 10, 70, 20), strict=True):
        set_clock(row, next_at=in_seconds(-age))
    assert [lease.key for lease in claim(lane_of(Lot))] == [rows[i].pk for i in (3, 1, 2, 0)]


@pytest.mark.parametrize("model", [Chore, Sensor])
def test_a_row_that_cannot_be_loaded_harms_no_neighbour(model, connect):
    rows = [model.objects.create() for _ in range(3)]

    def refuse(instance, **kwargs):
        if instance.pk == rows[1].pk:
            raise ValueError("what is this?")

    connect(post_init, refuse, model)
    leases = {lease.key: lease for lease in claim(lane_of(model))}
    assert set(leases) == {row.pk for row in rows}
    bad = leases.pop(rows[1].pk)
    assert (bad.instance, str(bad.load_error), bad.token) == (None, "what is this?", 1)
    assert all(lease.load_error is None and lease.instance.pk == key for key, lease in leases.items())


def test_a_claim_is_told(told):
    rows = [Lot.objects.create() for _ in range(2)]
    Claimer("me:1", 60).claim(lane_of(Lot), 5)
    (call,) = told
    assert (call["sender"], call["machine"], call["using"], call["owner"]) == (Lot, Lot.states, "default", "me:1")
    assert sorted(call["keys"]) == [row.pk for row in rows]


def test_nothing_is_told_of_nothing(told):
    assert claim(lane_of(Lot)) == told == []


def test_what_is_taken_over_is_told_and_logged(told, caplog):
    lot, lane = Lot.objects.create(), lane_of(Lot)
    claim_one(lane, owner="dead:1")
    let_lease_run_out(lot)
    told.clear()
    (lease,) = claim(lane, suspects=True)
    assert lease.crashes
    _claimed, recovered = told
    assert (recovered["instance"], recovered["crashes"]) == (lot, 1)
    assert recovered["error"] == "Recovered from dead:1, which stopped extending its lease."
    (record,) = caplog.records
    assert (record.name, record.levelno) == ("statemachine_fields.worker", logging.WARNING)
    assert record.getMessage() == (
        f"lab.Lot pk={lot.pk} in 'OPEN' was held by a worker that said nothing of it, for the first time in this state. "
        "Recovered from dead:1, which stopped extending its lease."
    )
