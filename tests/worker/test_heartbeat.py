"""Leases are extended, whatever goes wrong with some of them."""

from __future__ import annotations

import time

import pytest
from django.db import DatabaseError

from lab.models import Chore, Lot
from statemachine_fields.worker.connections import OwnConnections
from statemachine_fields.worker.heartbeat import Heartbeat
from statemachine_fields.worker.lease import now
from tests.worker.rows import about, claim, columns_of, elsewhere, lane_of, not_mariadb, only_postgresql, seconds_until

pytestmark = [pytest.mark.django_db(transaction=True), not_mariadb]

SECONDS = 600.0


@pytest.fixture
def heartbeat(inflight, events):
    heartbeat = Heartbeat("default", inflight, OwnConnections(SECONDS), SECONDS, events.digest)
    heartbeat._beat_at = 0.0
    return heartbeat


@pytest.fixture
def leases(lots, inflight):
    for _ in range(5):
        Lot.objects.create()
    claimed = sorted(claim(lots, seconds=60), key=lambda lease: lease.key)
    inflight.took(claimed)
    return claimed


def is_extended(lease):
    left = seconds_until(columns_of(lease.instance).lease_expires_at)
    assert (left == about(SECONDS)) == (lease.trusted_until > now() + SECONDS / 2)
    return left == about(SECONDS)


def refuse(monkeypatch, lots, keys):
    """Let no lease of these rows be extended."""
    real = type(lots).beat

    def beat(lane, asked, *args):
        if lane.bound is lots.bound and not keys.isdisjoint(asked):  # rows of others may have the same keys
            raise DatabaseError("a trigger")
        return real(lane, asked, *args)

    monkeypatch.setattr(type(lots), "beat", beat)


@only_postgresql
def test_every_lease_is_extended_in_one_statement(heartbeat, leases, django_assert_num_queries):
    with django_assert_num_queries(1):
        heartbeat._beat()
    assert all(is_extended(lease) for lease in leases)


def test_a_row_that_cannot_be_written_does_not_cost_its_neighbours_theirs(heartbeat, leases, lots, monkeypatch, caplog):
    refuse(monkeypatch, lots, {leases[2].key})
    heartbeat._beat()
    assert [is_extended(lease) for lease in leases] == [True, True, False, True, True]
    assert "cannot be extended now" in caplog.text


def test_what_could_not_be_extended_is_tried_again_sooner(heartbeat, leases, lots, monkeypatch):
    refuse(monkeypatch, lots, {leases[2].key})
    heartbeat._beat()
    assert heartbeat._beat_at - time.monotonic() < SECONDS / 3 / 2


def test_another_machine_is_not_held_up(heartbeat, leases, lots, inflight, monkeypatch):
    Chore.objects.create()
    (chore,) = claim(lane_of(Chore))
    inflight.took([chore])
    refuse(monkeypatch, lots, {lease.key for lease in leases})
    heartbeat._beat()
    assert is_extended(chore)


def test_a_lease_that_was_lost_is_known_to_be(heartbeat, leases):
    leases[1].instance.states.release()
    heartbeat._beat()
    assert [lease.is_lost for lease in leases] == [False, True, False, False, False]


def test_a_handler_that_was_stopped_keeps_no_lease(heartbeat, leases):
    leases[0].stop()
    heartbeat._beat()
    assert [is_extended(lease) for lease in leases] == [False, True, True, True, True]


def test_whatever_goes_wrong_it_beats_again(heartbeat, monkeypatch, caplog):
    beats = []

    def beat():
        beats.append(1)
        if len(beats) < 3:
            raise ValueError("nobody thought of this")
        heartbeat.ended.set()

    monkeypatch.setattr(heartbeat, "_beat", beat)
    monkeypatch.setattr("statemachine_fields.worker.heartbeat.TICK", 0.001)
    monkeypatch.setattr(heartbeat.own, "use", lambda *args: None)
    elsewhere(heartbeat.run)
    assert len(beats) == 3
    assert caplog.text.count("met an error, and goes on.") == 1
