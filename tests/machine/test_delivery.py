"""Events that are delivered to rows: what is written, what is answered, and what is refused."""

from __future__ import annotations

import datetime
import pickle

import pytest
from asgiref.sync import async_to_sync
from django.db import connection, transaction
from django.test.utils import CaptureQueriesContext

from lab.models import Deal, LongPetition, Lot, Petition, PetitionOfSomebody
from lab.models.waiting import Deal as ImportedDeal
from statemachine_fields import Delivery, EventRefused, RowMissing, StateEvent, StateMachineError
from statemachine_fields.exceptions import UnrecordedStatusChange
from tests.worker.rows import columns_of, set_clock

WOKEN, KEPT, DUPLICATE = Delivery.WOKEN, Delivery.KEPT, Delivery.DUPLICATE
Events = Petition.states.event_model

only_postgresql = pytest.mark.skipif(connection.vendor != "postgresql", reason="one statement there alone")
pytestmark = pytest.mark.django_db


def petition(status="HEARD", **values):
    row = Petition.objects.create(**values)
    if status != "DRAFT":
        row.states.force_transition_to(status, reason="for the test")
    return row


def long_petition(**values):
    row = LongPetition.objects.create(**values)
    row.states.force_transition_to("HEARD", reason="for the test")
    return row


def inbox_of(row):
    return type(row).objects.values_list("status_inbox", flat=True).get(pk=row.pk)


def is_due(row):
    return Petition.states.due().filter(pk=row.pk).exists()


class TestAnswers:
    def test_a_row_that_waits_for_it_is_woken(self):
        row = petition("HEARD")

        assert row.states.deliver("denied", {"by": "court"}) is WOKEN
        assert is_due(row)
        row.refresh_from_db()
        assert row.status == "HEARD"  # only workers move it

    def test_a_row_that_waits_for_something_else_keeps_it(self):
        row = petition("HEARD")

        assert row.states.deliver("call") is KEPT
        assert columns_of(row).next_at is None
        assert inbox_of(row) == 1

    def test_a_row_that_does_not_wait_keeps_it(self):
        row = petition("DRAFT")

        assert row.states.deliver("letter") is KEPT
        assert columns_of(row).next_at is None

    def test_one_that_came_before_is_a_duplicate(self):
        row = petition("HEARD")
        row.states.deliver("denied", {"n": 1}, dedup_key="evt-7")

        assert row.states.deliver("letter", {"n": 2}, dedup_key="evt-7") is DUPLICATE
        assert [event.payload for event in row.states.events] == [{"n": 1}]
        assert inbox_of(row) == 1

    def test_one_that_came_before_is_a_duplicate_also_when_the_row_has_ended(self):
        row = petition("HEARD")
        row.states.deliver("denied", dedup_key="evt-7")
        row.states.transition_to("DENIED")

        assert row.states.deliver("denied", dedup_key="evt-7") is DUPLICATE

    def test_keys_are_those_of_one_row(self):
        one, other = petition("HEARD"), petition("HEARD")

        assert [row.states.deliver("denied", dedup_key="evt-7") for row in (one, other)] == [WOKEN, WOKEN]

    def test_without_a_key_all_are_new(self):
        row = petition("HEARD")

        assert [row.states.deliver("call") for _ in range(3)] == [KEPT] * 3
        assert [event.number for event in row.states.events] == [1, 2, 3]

    def test_a_row_that_is_held_keeps_it(self):
        row = petition("HEARD")
        later = row.status_changed_at + datetime.timedelta(hours=1)
        set_clock(row, next_at=row.status_changed_at, lease_owner="w", lease_expires_at=later)

        assert row.states.deliver("denied") is KEPT

    def test_a_row_that_is_parked_keeps_it_and_is_not_woken(self):
        row = petition("HEARD")
        set_clock(row, next_at=None, error="broken")

        assert row.states.deliver("denied") is KEPT
        assert columns_of(row).next_at is None

    def test_a_row_that_failed_is_tried_again_by_its_policy(self):
        row = petition("HEARD")
        later = row.status_changed_at + datetime.timedelta(hours=1)
        set_clock(row, next_at=later, failures=1, error="broken")

        assert row.states.deliver("denied") is KEPT
        assert columns_of(row).next_at == later

    def test_a_row_that_failed_once_and_sleeps_again_is_woken(self):
        row = petition("HEARD")
        set_clock(row, next_at=None, failures=1, error="")

        assert row.states.deliver("denied") is WOKEN

    def test_a_row_that_is_due_already_keeps_its_place(self):
        row = petition("HEARD")
        row.states.deliver("denied")
        before = columns_of(row).next_at

        assert row.states.deliver("denied") is WOKEN
        assert columns_of(row).next_at == before

    def test_a_time_out_is_brought_forward(self):
        row = petition("OPEN")
        assert columns_of(row).next_at is not None

        assert row.states.deliver("letter") is WOKEN
        assert is_due(row)


class TestRefusals:
    @pytest.mark.parametrize("status", ["GRANTED", "DENIED"])
    def test_a_row_that_has_ended(self, status):
        row = petition(status)

        with pytest.raises(EventRefused, match=f"has ended in '{status}'") as caught:
            row.states.deliver("letter", dedup_key="evt-7")
        assert (caught.value.name, caught.value.status) == ("letter", status)
        assert inbox_of(row) == row.states.events.count() == 0

    def test_a_name_that_no_state_waits_for(self):
        row = petition("HEARD")

        with pytest.raises(EventRefused, match="Did you mean 'letter'") as caught:
            row.states.deliver("leter")
        assert caught.value.known == ["letter", "call", "court.granted", "denied"]
        again = pickle.loads(pickle.dumps(caught.value))  # noqa: S301
        assert (str(again), again.known) == (str(caught.value), caught.value.known)

    @pytest.mark.parametrize("payload", [object(), {"x": float("nan")}, {"x": "\x00"}, {1, 2}, "\ud800"])
    def test_a_payload_that_is_no_json(self, payload):
        row = petition("HEARD")

        with pytest.raises(TypeError, match="payload"):
            row.states.deliver("denied", payload)
        assert inbox_of(row) == row.states.events.count() == 0

    @pytest.mark.parametrize(
        ("dedup_key", "error"),
        [("", ValueError), ("x" * 201, ValueError), ("a\x00", ValueError), ("\ud800", ValueError), (7, TypeError)],
    )
    def test_a_key_that_no_column_takes(self, dedup_key, error):
        with pytest.raises(error, match="dedup_key"):
            petition("HEARD").states.deliver("denied", dedup_key=dedup_key)

    @pytest.mark.parametrize("by", ["pk", "id", "status_inbox"])
    def test_a_number_that_no_row_can_have_takes_no_others_along(self, by):
        row = petition("HEARD")
        key = 0 if by == "status_inbox" else row.pk

        entries = [{"key": each, "name": "call"} for each in (2**70, key, -(2**70))]
        assert Petition.states.bulk_deliver(entries, by=by) == [Delivery.MISSING, KEPT, Delivery.MISSING]

    def test_a_row_that_is_gone(self):
        row = petition("HEARD")
        Petition.objects.filter(pk=row.pk).delete()

        with pytest.raises(RowMissing):
            row.states.deliver("denied")

    def test_a_row_that_was_never_saved(self):
        with pytest.raises(RowMissing):
            Petition().states.deliver("denied")

    def test_a_machine_that_waits_for_no_events(self):
        with pytest.raises(StateMachineError, match="no state waits for one"):
            Lot.objects.create().states.deliver("denied")
        with pytest.raises(StateMachineError, match="no state waits for one"):
            Lot.states.event_model  # noqa: B018
        assert Lot.states.event_names == ()

    def test_the_callers_transaction_stays_usable(self):
        row = petition("DENIED")

        with transaction.atomic():
            with pytest.raises(EventRefused):
                row.states.deliver("letter")
            assert Petition.objects.count() == 1


@pytest.mark.parametrize("payload", [{"a": [1, {"b": None}]}, [1, 2], "text", 5, True, None, {}])
def test_a_payload_comes_back_as_it_was(payload):
    row = petition("HEARD")
    row.states.deliver("denied", payload)

    assert row.states.events.get().payload == ({} if payload is None else payload)


class TestTransactions:
    def test_an_event_is_undone_with_what_surrounds_it(self):
        row = petition("HEARD")
        with transaction.atomic():
            row.states.deliver("denied", dedup_key="evt-7")
            transaction.set_rollback(True)

        assert (inbox_of(row), is_due(row)) == (0, False)
        assert row.states.deliver("denied", dedup_key="evt-7") is WOKEN

    @only_postgresql
    def test_it_is_one_statement(self):
        row = petition("HEARD")
        row.states.deliver("denied")
        with CaptureQueriesContext(connection) as queries:
            row.states.deliver("denied", {"a": 1}, dedup_key="x")
            row.states.deliver("denied", {"a": 1}, dedup_key="x")
        assert len(queries) == 2

    def test_it_can_be_awaited(self):
        row = petition("HEARD")
        with transaction.atomic():
            assert async_to_sync(row.states.adeliver)("denied") is WOKEN


class TestByBusinessKey:
    def test_finds_the_row(self):
        row = petition("HEARD", number="A-17")
        petition("HEARD", number="A-18")

        assert Petition.states.deliver("denied", {"x": 1}, where={"number": "A-17"}, dedup_key="k") is WOKEN
        assert row.states.events.get().payload == {"x": 1}

    def test_refuses_what_fits_several(self):
        for _ in range(2):
            petition("HEARD", number="A-17")

        with pytest.raises(Petition.MultipleObjectsReturned, match="number='A-17'"):
            Petition.states.deliver("denied", where={"number": "A-17"})
        assert not Events.objects.exists()

    def test_refuses_what_fits_none(self):
        with pytest.raises(RowMissing, match="number='A-17'"):
            Petition.states.deliver("denied", where={"number": "A-17"})

    def test_finds_the_row_of_a_child_by_fields_of_both_tables(self):
        row = long_petition(pages=7, number="A-17")
        long_petition(pages=8, number="A-17")

        assert LongPetition.states.deliver("denied", where={"number": "A-17", "pages": 7}) is WOKEN
        assert LongPetition.states.bulk_deliver([{"key": "7", "name": "call"}], by="pages") == [KEPT]
        assert [event.name for event in row.states.events] == ["denied", "call"]

    def test_asked_of_a_child_finds_rows_of_the_child_alone(self):
        petition("HEARD", number="A-17")
        long_petition(number="A-18")
        long_petition(number="A-18")

        with pytest.raises(RowMissing, match="lab.LongPetition with number='A-17'"):
            LongPetition.states.deliver("denied", where={"number": "A-17"})
        with pytest.raises(LongPetition.MultipleObjectsReturned, match="Several rows of lab.LongPetition"):
            LongPetition.states.deliver("denied", where={"number": "A-18"})
        entries = [{"key": "A-17", "name": "denied"}]
        assert LongPetition.states.bulk_deliver(entries, by="number") == [Delivery.MISSING]
        assert Petition.states.bulk_deliver(entries, by="number") == [WOKEN]

    def test_asked_of_a_child_takes_keys_for_those_of_the_child(self):
        plain, long = petition("HEARD"), long_petition()
        entries = [{"key": str(each.pk), "name": "denied"} for each in (plain, long)]
        assert LongPetition.states.bulk_deliver(entries) == [Delivery.MISSING, WOKEN]
        assert Petition.states.bulk_deliver(entries[:1]) == [WOKEN]

    def test_a_child_has_the_machine_of_its_parent(self):
        assert LongPetition.states == Petition.states
        assert hash(LongPetition.states) == hash(Petition.states)
        assert Petition.states != Deal.states
        assert LongPetition.states is LongPetition.states
        assert PetitionOfSomebody.states is Petition.states
        assert pickle.loads(pickle.dumps(LongPetition.states)) is LongPetition.states  # noqa: S301
        assert LongPetition.states.model is Petition

    @pytest.mark.parametrize("where", [{}, None, "A-17"])
    def test_refuses_to_guess(self, where):
        with pytest.raises(TypeError, match="where"):
            Petition.states.deliver("denied", where=where)


class TestMany:
    def test_answers_for_each(self):
        waits, other, ended = petition("HEARD"), petition("DRAFT"), petition("DENIED")
        waits.states.deliver("call", dedup_key="before")
        entries = [
            {"key": ended.pk, "name": "letter"},
            {"key": waits.pk, "name": "denied", "payload": {"n": 1}, "dedup_key": "a"},
            {"key": waits.pk, "name": "denied", "dedup_key": "a"},
            {"key": waits.pk, "name": "call", "dedup_key": "before"},
            {"key": waits.pk, "name": "call"},
            {"key": other.pk, "name": "letter"},
            {"key": 0, "name": "letter"},
        ]
        assert Petition.states.bulk_deliver(iter(entries)) == [
            Delivery.REFUSED,
            WOKEN,
            DUPLICATE,
            DUPLICATE,
            KEPT,
            KEPT,
            Delivery.MISSING,
        ]
        assert [(event.number, event.name) for event in waits.states.events] == [
            (1, "call"),
            (2, "denied"),
            (3, "call"),
        ]
        assert inbox_of(waits) == 3
        assert (is_due(waits), is_due(other)) == (True, False)

    def test_wakes_nobody_who_waits_for_something_else(self):
        row = petition("HEARD")

        assert Petition.states.bulk_deliver([{"key": row.pk, "name": "call"}]) == [KEPT]
        assert columns_of(row).next_at is None

    def test_goes_by_another_field(self):
        row = petition("HEARD", number="A-17")
        entries = [{"key": number, "name": "denied"} for number in ("A-17", "A-18")]

        assert Petition.states.bulk_deliver(entries, by="number") == [WOKEN, Delivery.MISSING]
        assert inbox_of(row) == 1

    def test_knows_what_a_row_is_known_by_in_any_form_that_the_field_takes(self):
        row = petition("HEARD", number="17")
        entries = [{"key": key, "name": "denied"} for key in (17, "17")]

        assert Petition.states.bulk_deliver(entries, by="number") == [WOKEN, WOKEN]
        assert Petition.states.bulk_deliver([{"key": str(row.pk), "name": "denied"}], by="id") == [WOKEN]
        assert inbox_of(row) == 3

    def test_knows_what_is_equal_for_the_database_alone(self):
        row = petition("HEARD")
        entries = [{"key": row, "name": "denied"}]

        assert Petition.states.bulk_deliver(entries, by="status_events__instance") == [Delivery.MISSING]
        row.states.deliver("call")
        assert Petition.states.bulk_deliver(entries, by="status_events__instance") == [WOKEN]
        assert inbox_of(row) == 2

    def test_knows_a_duplicate_whatever_form_its_key_has(self):
        row = petition("HEARD")
        entries = [{"key": key, "name": "denied", "dedup_key": "1"} for key in (row.pk, str(row.pk))]

        assert Petition.states.bulk_deliver(entries) == [WOKEN, DUPLICATE]
        assert inbox_of(row) == 1

    def test_refuses_a_field_by_which_several_are_known(self):
        for _ in range(2):
            petition("HEARD", number="A-17")
        with pytest.raises(Petition.MultipleObjectsReturned):
            Petition.states.bulk_deliver([{"key": "A-17", "name": "denied"}], by="number")

    @pytest.mark.parametrize(
        ("entry", "error"),
        [
            ({"name": "denied"}, TypeError),
            ({"key": 1, "name": "denied", "pk": 1}, TypeError),
            ("denied", TypeError),
            ({"key": 1, "name": "denied", "payload": object()}, TypeError),
            ({"key": 1, "name": "nobody"}, EventRefused),
        ],
    )
    def test_writes_nothing_of_a_batch_with_something_wrong(self, entry, error):
        row = petition("HEARD")

        with pytest.raises(error):
            Petition.states.bulk_deliver([{"key": row.pk, "name": "denied"}, entry])
        assert inbox_of(row) == 0

    def test_keeps_the_batches_before(self):
        row = petition("HEARD")
        entries = [{"key": row.pk, "name": "denied"}] * 2 + [{"key": row.pk, "name": "nobody"}]

        with pytest.raises(EventRefused):
            Petition.states.bulk_deliver(entries, batch_size=2)
        assert inbox_of(row) == 2

    @only_postgresql
    def test_takes_the_same_number_of_statements_however_many(self):
        rows = [petition("HEARD") for _ in range(20)]
        counts = []
        for some in (rows[:1], rows):
            entries = [{"key": row.pk, "name": name} for row in some for name in ("denied", "letter")]
            with CaptureQueriesContext(connection) as queries:
                Petition.states.bulk_deliver(entries)
            counts.append(len(queries))
        assert counts[0] == counts[1]

    def test_is_nothing_for_nothing(self):
        assert Petition.states.bulk_deliver([]) == []
        assert async_to_sync(Petition.states.abulk_deliver)([]) == []
        with pytest.raises(ValueError, match="batch_size"):
            Petition.states.bulk_deliver([], batch_size=0)


class TestModel:
    def test_is_named_as_the_audit_model_is_and_lives_beside_it(self):
        import lab.models
        import lab.models.waiting

        names = [machine.event_model.__name__ for machine in (Petition.states, Deal.states, Deal.payment)]
        assert names == ["PetitionStateEvent", "DealStateEvent", "DealPaymentStateEvent"]
        assert (
            lab.models.waiting.DealPaymentStateEvent
            is lab.models.DealPaymentStateEvent
            is ImportedDeal.payment.event_model
        )
        assert issubclass(Deal.payment.event_model, StateEvent)

    def test_machines_of_one_row_have_each_their_own(self):
        deal = Deal.objects.create(code="D-1")

        assert [deal.states.deliver("signed"), deal.payment.deliver("paid", dedup_key="x")] == [WOKEN, WOKEN]
        deal.refresh_from_db()
        assert (deal.status_inbox, deal.payment_inbox) == (1, 1)
        assert [event.name for event in deal.payment_status_events.all()] == ["paid"]
        with pytest.raises(EventRefused):
            deal.payment.deliver("signed")

    def test_children_and_proxies_share_it(self):
        child = LongPetition.objects.create()
        child.states.transition_to("HEARD")
        proxy = PetitionOfSomebody.objects.get(pk=child.pk)

        assert [child.states.deliver("denied"), proxy.states.deliver("denied")] == [WOKEN, WOKEN]
        assert Petition.objects.get(pk=child.pk).states.events.count() == 2

    def test_is_written_by_the_machine_alone(self):
        row = petition("HEARD")
        row.states.deliver("denied")
        event = row.states.events.get()

        with pytest.raises(StateMachineError, match="deliver"):
            event.save()
        with pytest.raises(StateMachineError, match="deliver"):
            Events(instance=row, number=2, name="denied").save()
        with pytest.raises(UnrecordedStatusChange, match="deliver"):
            Petition.objects.update(status_inbox=5)

    def test_is_gone_with_the_row(self):
        row = petition("HEARD")
        row.states.deliver("denied")
        row.delete()

        assert not Events.objects.exists()

    def test_a_copy_of_a_row_has_none(self):
        row = petition("HEARD")
        row.states.deliver("denied")
        row.refresh_from_db()
        row.pk, row._state.adding = None, True
        row.save()

        assert (inbox_of(row), columns_of(row).next_at) == (0, None)
        assert row.states.deliver("denied") is WOKEN

    def test_may_be_added_to_by_who_may_deliver(self):
        assert Events._meta.default_permissions == ("add", "view")


class TestMovesByPeople:
    """Whoever moves a row into a state that waits does not know what is in its inbox."""

    def into_heard(self, row):
        row.states.transition_to("HEARD")

    def into_heard_in_bulk(self, row):
        Petition.states.bulk_transition(Petition.objects.filter(pk=row.pk), "HEARD")

    def into_heard_by_force(self, row):
        row.states.force_transition_to("HEARD", reason="for the test")

    def into_heard_by_save(self, row):
        with transaction.atomic():
            row.states.transition_to("HEARD", save=False)
            row.save()

    WAYS = (into_heard, into_heard_in_bulk, into_heard_by_force, into_heard_by_save)

    @pytest.mark.parametrize("move", WAYS, ids=lambda way: way.__name__)
    def test_a_row_that_has_got_events_is_due_at_once(self, move):
        row = petition("DRAFT")
        row.states.deliver("denied")
        move(self, row)

        assert is_due(row)

    @pytest.mark.parametrize("move", WAYS, ids=lambda way: way.__name__)
    def test_a_row_that_has_got_none_sleeps(self, move):
        row = petition("DRAFT")
        move(self, row)

        assert columns_of(row).next_at is None

    def test_a_row_that_leaves_for_a_state_that_does_not_wait_is_not_due(self):
        row = petition("OPEN")
        row.states.deliver("letter")
        row.states.transition_to("DRAFT")

        assert columns_of(row).next_at is None
