"""History from elsewhere: in order, whole for each row or not at all, and afterwards as if it had been recorded here."""

from __future__ import annotations

import asyncio
import datetime
import threading
import tracemalloc
import uuid
from io import StringIO
from zoneinfo import ZoneInfo

import pytest
from asgiref.sync import sync_to_async
from django.core.management import call_command
from django.db import connection, connections, models, transaction
from django.test.utils import CaptureQueriesContext
from django.utils import timezone

from lab.models import (
    Car,
    Chore,
    Coupon,
    Expedition,
    Invoice,
    Kept,
    Logged,
    Parcel,
    Petition,
    Reasoned,
    Ticket,
    Vehicle,
)
from statemachine_fields.machine.bulk import Refusal
from statemachine_fields.machine.history_import import ImportResult
from statemachine_fields.machine.verify import Verifier
from statemachine_fields.testing import drain
from tests.patience import PATIENCE
from tests.sessions import wait_until_blocked
from tests.together import together
from tests.worker.rows import not_mariadb

pytestmark = pytest.mark.django_db

START = datetime.datetime(2019, 5, 1, 12, tzinfo=datetime.UTC)


def day(number: float) -> datetime.datetime:
    return START + datetime.timedelta(days=number)


def entry(row, to_status, at, from_status=None, **more):
    key = row.pk if isinstance(row, models.Model) else row
    said = {"key": key, "to_status": to_status, "at": day(at) if isinstance(at, int | float) else at, **more}
    return said if from_status is None else {**said, "from_status": from_status}


def recorded(row, accessor="states"):
    """Return the history of a row, the oldest first, as (number, from, to, time)."""
    facts = ("sequence", "from_status", "to_status", "transitioned_at")
    return list(getattr(row, accessor).history.order_by("sequence").values_list(*facts))


def assert_clean(machine):
    """What anybody can check holds: by number, by id and by time the order is one, and nothing else is wrong."""
    assert list(Verifier(machine._meta).findings()) == []
    for key in machine.transition_model.objects.values_list("instance_id", flat=True).distinct().order_by():
        records = machine.transition_model.objects.filter(instance_id=key)
        by_number = list(records.order_by("sequence").values_list("id", flat=True))
        assert by_number == list(records.order_by("id").values_list("id", flat=True))
        times = list(records.order_by("sequence").values_list("transitioned_at", flat=True))
        assert times == sorted(times)


def refused_with(machine, *entries, **options):
    """Return why the one row of the entries was refused, having seen that nothing was written."""
    result = machine.import_history(entries, **options)
    assert (result.imported, result.records, result.refused) == (0, 0, 1)
    assert machine.transition_model.objects.count() == 0
    return result.refusals[0].reason


@pytest.fixture
def ticket():
    return Ticket.objects.create(status="closed")


class TestAHistory:
    def test_is_there_as_if_it_had_been_recorded(self, ticket):
        result = Ticket.states.import_history(
            [
                entry(ticket, "monday", 1, "open", metadata={"by": "Ada"}),
                entry(ticket, "open", 2, "monday"),
                entry(ticket, "closed", 3, "open", metadata={"by": "Bob"}),
            ]
        )
        assert result == ImportResult(imported=1, records=3)
        assert recorded(ticket) == [
            (1, "open", "monday", day(1)),
            (2, "monday", "open", day(2)),
            (3, "open", "closed", day(3)),
        ]
        ticket.refresh_from_db()
        assert (ticket.status, ticket.status_sequence, ticket.status_changed_at) == ("closed", 3, day(3))
        assert [each.metadata for each in ticket.states.history] == [
            {"by": "Bob", "imported": True},
            {"imported": True},
            {"by": "Ada", "imported": True},
        ]
        assert_clean(Ticket.states)

    def test_answers_questions_about_the_past(self, ticket):
        Ticket.states.import_history([entry(ticket, "open", 1), entry(ticket, "closed", 3)])
        assert [ticket.states.status_at(day(number)) for number in (0, 2, 4)] == [None, "open", "closed"]
        assert Ticket.states.durations(since=day(2)).states["open"].median == datetime.timedelta(days=2)

    def test_goes_on_with_the_next_move(self):
        ticket = Ticket.objects.create(status="monday")
        Ticket.states.import_history([entry(ticket, "monday", 1, "open")])
        ticket.states.transition_to("closed", expected="monday")
        assert [each[:3] for each in recorded(ticket)] == [(1, "open", "monday"), (2, "monday", "closed")]
        assert_clean(Ticket.states)

    def test_of_snapshots_has_a_record_for_each_change(self, ticket):
        seen = ["open", "open", "monday", "monday", "monday", "closed"]
        result = Ticket.states.import_history(entry(ticket, status, number) for number, status in enumerate(seen))
        assert result.records == 3
        assert recorded(ticket) == [
            (1, "", "open", day(0)),
            (2, "open", "monday", day(2)),
            (3, "monday", "closed", day(5)),
        ]
        assert_clean(Ticket.states)

    @pytest.mark.parametrize("unknown", ["", None])
    def test_may_not_know_where_a_move_came_from(self, unknown, ticket):
        entries = [entry(ticket, "open", 1), {**entry(ticket, "closed", 2), "from_status": unknown}]
        Ticket.states.import_history(entries)
        assert [each[1:3] for each in recorded(ticket)] == [("", "open"), ("open", "closed")]

    def test_keeps_a_move_to_the_state_the_row_was_in(self):
        parcel = Parcel.objects.create(status="SCANNED")
        Parcel.states.import_history([entry(parcel, "SCANNED", 1), entry(parcel, "SCANNED", 2, "SCANNED")])
        assert [each[1:3] for each in recorded(parcel)] == [("", "SCANNED"), ("SCANNED", "SCANNED")]

    def test_may_have_moves_that_are_not_declared_any_more(self):
        ticket = Ticket.objects.create(status="open")
        Ticket.states.import_history([entry(ticket, "closed", 1, "open"), entry(ticket, "open", 2, "closed")])
        assert_clean(Ticket.states)

    def test_may_have_moves_at_one_time(self, ticket):
        Ticket.states.import_history([entry(ticket, "open", 1), entry(ticket, "monday", 1), entry(ticket, "closed", 1)])
        assert [each[2] for each in recorded(ticket)] == ["open", "monday", "closed"]
        assert_clean(Ticket.states)

    def test_takes_members_of_choices_for_states(self, ticket):
        Ticket.states.import_history([entry(ticket, Ticket.Status.CLOSED, 1, Ticket.Status.OPEN)])
        assert [type(state) for state in recorded(ticket)[0][1:3]] == [str, str]

    def test_takes_values_for_the_fields_of_a_transition_base(self):
        row = Reasoned.objects.create(status="DONE")
        said = [entry(row, "NEW", 1), entry(row, "DONE", 2, record={"reason": "it was late"})]
        Reasoned.states.import_history(said)
        assert [each.reason for each in row.states.history] == ["it was late", "none given"]

    def test_asks_no_context_and_tells_no_receiver(self, ticket, heard):
        from statemachine_fields import signals, transition_context

        told = heard(signals.pre_transition, signals.post_transition, signals.transition_committed, sender=Ticket)
        with transition_context(actor="importer"):
            Ticket.states.import_history([entry(ticket, "closed", 1)])
        assert told == []
        assert ticket.states.history.get().metadata == {"imported": True}


class TestStatesOfThePast:
    def test_are_refused_unless_they_are_named(self, ticket):
        said = [entry(ticket, "frozen", 1, "open"), entry(ticket, "closed", 2, "frozen")]
        assert refused_with(Ticket.states, *said) == (
            f"Entry 1, 'open' → 'frozen' at {day(1)}, has 'frozen', which is not declared. Give the entry the state that it "
            "is called now, or, if there is none, name it in past_states."
        )
        assert Ticket.states.import_history(said, past_states=["frozen"]).records == 2
        assert ticket.states.status_at(day(1.5)) == "frozen"
        assert list(Ticket.states.durations().states) == ["frozen"]
        assert_clean(Ticket.states)


class TestWhatDoesNotFit:
    def test_a_break_in_the_chain(self, ticket):
        said = [entry(ticket, "monday", 1, "open"), entry(ticket, "closed", 2, "open")]
        assert refused_with(Ticket.states, *said) == (
            f"Entry 2, 'open' → 'closed' at {day(2)}, does not go on from the one before it, which led to 'monday'. "
            "Add what is missing, or have it recorded as a gap with gaps='record'."
        )

    def test_times_that_go_back(self, ticket):
        reason = refused_with(Ticket.states, entry(ticket, "open", 2), entry(ticket, "closed", 1), gaps="record")
        assert reason == (
            f"Entry 2, 'closed' at {day(1)}, is earlier than the one before it, of {day(2)}. Order entries by time."
        )

    def test_an_end_where_the_row_is_not(self, ticket):
        [refusal] = Ticket.states.import_history([entry(ticket, "monday", 1, "open")]).refusals
        assert refusal == Refusal(
            ticket.pk,
            "closed",
            "The last entry leads to 'monday', and the row is in 'closed'. Add what is missing, or have it recorded as a "
            "gap with gaps='record'.",
        )

    def test_a_key_that_no_row_has(self):
        assert refused_with(Ticket.states, entry(4711, "open", 1)) == "There is no row of lab.Ticket with this key."

    @pytest.mark.parametrize("key", ["not a number", None, ["a", "list"]])
    def test_a_key_that_no_row_can_have(self, key):
        assert refused_with(Ticket.states, entry(key, "open", 1)) == "No row of lab.Ticket can have this key."

    def test_metadata_that_no_database_keeps(self):
        ticket = Ticket.objects.create()
        reason = refused_with(Ticket.states, entry(ticket, "open", 1, metadata={"what": object()}))
        assert reason.startswith(f"Entry 1, 'open' at {day(1)}, is refused: metadata cannot be written as JSON: ")

    def test_a_time_to_come(self):
        ticket = Ticket.objects.create()
        reason = refused_with(Ticket.states, entry(ticket, "open", timezone.now() + datetime.timedelta(hours=1)))
        assert "lies in the future: it is " in reason

    @pytest.mark.parametrize(
        "at",
        [
            datetime.datetime.min.replace(tzinfo=datetime.UTC),
            datetime.datetime(1970, 1, 1, tzinfo=datetime.timezone(datetime.timedelta(hours=2))),
            datetime.datetime.max.replace(tzinfo=datetime.timezone(datetime.timedelta(hours=-2))),
        ],
    )
    def test_a_time_that_no_id_can_have(self, at):
        ticket = Ticket.objects.create()
        assert "is out of bounds" in refused_with(Ticket.states, entry(ticket, "open", at))

    def test_stands_alone_and_the_other_rows_get_theirs(self):
        tickets = Ticket.objects.bulk_create(Ticket(status="closed") for _ in range(3))
        said = [entry(ticket, "closed", 1, "open") for ticket in tickets]
        said[1]["to_status"] = "monday"
        result = Ticket.states.import_history(said)
        assert (result.imported, result.refused, result.refusals[0].pk) == (2, 1, tickets[1].pk)
        assert [ticket.states.history.count() for ticket in tickets] == [1, 0, 1]
        assert_clean(Ticket.states)

    def test_leaves_a_transaction_of_the_caller_usable(self, ticket):
        with transaction.atomic():
            assert Ticket.states.import_history([entry(ticket, "monday", 1)]).refused == 1
            assert Ticket.objects.count() == 1

    def test_a_key_that_comes_back(self):
        one, other = Ticket.objects.bulk_create([Ticket(status="closed"), Ticket(status="closed")])
        said = [entry(one, "open", 1), entry(other, "closed", 1), entry(one, "closed", 2)]
        result = Ticket.states.import_history(said)
        assert [refusal.pk for refusal in result.refusals] == [one.pk, one.pk]
        assert result.refusals[1].reason == (
            "The key came before and was refused. Give all entries of a key one after the other, by time."
        )
        assert one.states.history.count() == 0

    def test_a_key_that_comes_back_after_its_first_entries_were_written(self):
        one, other = Ticket.objects.bulk_create([Ticket(status="closed"), Ticket(status="closed")])
        said = [entry(one, "closed", 1), entry(other, "closed", 1), entry(one, "closed", 2, "open")]
        result = Ticket.states.import_history(said)
        assert (result.imported, result.refused) == (2, 1)
        assert "give all entries of a key one after the other" in result.refusals[0].reason
        assert one.states.history.count() == 1


class TestAWrongEntry:
    @pytest.mark.parametrize(
        ("wrong", "error", "message"),
        [
            ({"at": datetime.datetime(2019, 5, 1)}, ValueError, "at must be an aware datetime, because USE_TZ is True"),  # noqa: DTZ001
            ({"at": "2019-05-01"}, TypeError, "at must be a datetime, got '2019-05-01'"),
            ({"to_status": 3}, TypeError, "must have states that are text, got None and 3"),
            ({"to_status": ""}, TypeError, "must have states that are text"),
            ({"from_status": 3}, TypeError, "must have states that are text, got 3 and 'closed'"),
            ({"form_status": "open"}, TypeError, "has at, form_status, from_status, to_status beside its key. It must"),
            ({"record": {"reason": "x"}}, TypeError, "record= names reason, but transition_base adds nothing"),
        ],
    )
    def test_ends_the_import_and_says_what_was_done(self, wrong, error, message):
        good, bad = Ticket.objects.bulk_create([Ticket(status="closed"), Ticket(status="closed")])
        said = [
            entry(good, "closed", 1),
            entry(bad, "open", 1),
            {**entry(bad, "closed", 2), "from_status": None, **wrong},
        ]
        with pytest.raises(error, match=message) as caught:
            Ticket.states.import_history(said)
        assert f"lab.Ticket.states: entry 2 of key {bad.pk}" in str(caught.value)
        assert "Nothing was written for this key. Rows that came before it, 1 in all, have their history." in str(
            caught.value
        )
        assert (good.states.history.count(), bad.states.history.count()) == (1, 0)

    @pytest.mark.parametrize(
        ("wrong", "message"),
        [
            ("text", "an entry must be a dict with a key, got"),
            ({"pk": 1, "to_status": "open"}, "an entry must be a dict with a key, got"),
            ({"key": 1, "to_status": "open"}, "1 of key 1 has to_status beside its key. It must have to_status and at"),
            (
                {"key": 1, "to": "open", "to_status": "open", "at": day(1)},
                "entry 1 of key 1 has at, to, to_status beside its key",
            ),
        ],
        ids=["no dict", "no key", "no time", "one thing twice"],
    )
    def test_has_a_key_a_state_and_a_time(self, wrong, message):
        with pytest.raises(TypeError, match=message):
            Ticket.states.import_history([wrong])

    def test_may_say_from_and_to_for_short(self, ticket):
        said = [{"key": ticket.pk, "from": "open", "to": "closed", "at": day(1), "metadata": {"by": "Bob"}}]
        assert Ticket.states.import_history(said).records == 1
        assert recorded(ticket) == [(1, "open", "closed", day(1))]
        assert_clean(Ticket.states)

    def test_an_error_of_the_generator_is_the_callers(self, ticket):
        def entries():
            yield entry(ticket, "closed", 1)
            raise TypeError("no such column")

        with pytest.raises(TypeError, match="^no such column$"):
            Ticket.states.import_history(entries())

    @pytest.mark.parametrize(
        ("options", "error", "message"),
        [
            ({"gaps": "keep"}, ValueError, "gaps must be 'refuse' or 'record', got 'keep'"),
            ({"batch_size": 0}, ValueError, "batch_size must be at least 1"),
            ({"past_states": "frozen"}, TypeError, "past_states must be a list of states, got 'frozen'"),
            (
                {"past_states": ["x" * 51]},
                ValueError,
                "has room for 50 characters. Give the machine a larger max_length",
            ),
        ],
        ids=["gaps", "batch size", "past states are a list", "past states fit into the column"],
    )
    def test_options_are_looked_at_first(self, options, error, message):
        with pytest.raises(error, match=message):
            Ticket.states.import_history([], **options)


class TestTheHourThatComesTwice:
    """When clocks are set back, two times of one zone look as if the later were the earlier."""

    first = datetime.datetime(2024, 10, 27, 2, 50, tzinfo=ZoneInfo("Europe/Berlin"))
    second = datetime.datetime(2024, 10, 27, 2, 10, fold=1, tzinfo=ZoneInfo("Europe/Berlin"))

    def test_is_in_order(self):
        ticket = Ticket.objects.create(status="open")
        moves = [entry(ticket, "monday", self.first, "open"), entry(ticket, "open", self.second, "monday")]
        assert Ticket.states.import_history(moves).imported == 1
        assert_clean(Ticket.states)

    def test_out_of_order_is_refused(self):
        ticket = Ticket.objects.create(status="open")
        moves = [entry(ticket, "monday", self.second, "open"), entry(ticket, "open", self.first, "monday")]
        assert "is earlier than the one before it" in refused_with(Ticket.states, *moves)

    def test_is_known_the_second_time(self):
        ticket = Ticket.objects.create(status="open")
        again = [entry(ticket, "open", self.first, "open")]
        Ticket.states.import_history(again)
        assert Ticket.states.import_history(again).skipped == 1
        assert len(recorded(ticket)) == 1


class TestGaps:
    def test_are_recorded_if_asked_for(self, ticket):
        said = [entry(ticket, "monday", 1, "open"), entry(ticket, "closed", 2, "open")]
        result = Ticket.states.import_history(said, gaps="record")
        assert result == ImportResult(imported=1, records=3, gaps=1)
        assert [each[1:] for each in recorded(ticket)] == [
            ("open", "monday", day(1)),
            ("monday", "open", day(2)),
            ("open", "closed", day(2)),
        ]
        assert [each.metadata for each in ticket.states.history.order_by("sequence")] == [
            {"imported": True},
            {"imported": True, "gap": True},
            {"imported": True},
        ]
        assert_clean(Ticket.states)

    def test_after_the_last_entry_lead_to_where_the_row_was_found(self, ticket):
        found_at = Ticket.objects.get().status_changed_at
        assert Ticket.states.import_history([entry(ticket, "monday", 1, "open")], gaps="record").gaps == 1
        assert recorded(ticket) == [(1, "open", "monday", day(1)), (2, "monday", "closed", found_at)]
        assert Ticket.objects.get().status_changed_at == found_at
        assert_clean(Ticket.states)

    def test_are_written_once(self, ticket):
        said = [entry(ticket, "monday", 1, "open"), entry(ticket, "open", 2, "closed")]
        assert Ticket.states.import_history(said, gaps="record").gaps == 2
        assert Ticket.states.import_history(said, gaps="record") == ImportResult(skipped=1)


class TestRowsThatHaveMovedSince:
    def test_get_their_past_before_it(self):
        ticket = Ticket.objects.create(status="open")
        ticket.states.transition_to("monday", {"by": "Ada"})
        ticket.states.transition_to("closed")
        own = recorded(ticket)
        said = [entry(ticket, "monday", 1, "open"), entry(ticket, "open", 2, "monday")]
        assert Ticket.states.import_history(said) == ImportResult(imported=1, records=2)
        assert recorded(ticket) == [
            (1, "open", "monday", day(1)),
            (2, "monday", "open", day(2)),
            *[(number + 2, *facts) for number, *facts in own],
        ]
        ticket.refresh_from_db()
        assert (ticket.status, ticket.status_sequence, ticket.status_changed_at) == ("closed", 4, own[-1][3])
        assert ticket.states.history.get(sequence=3).metadata == {"by": "Ada"}
        assert_clean(Ticket.states)
        ticket.states.force_transition_to("open", reason="again")
        assert_clean(Ticket.states)

    def test_are_skipped_the_second_time(self):
        moved, still = Ticket.objects.bulk_create([Ticket(status="open"), Ticket(status="open")])
        moved.states.transition_to("closed")
        said = [entry(row, state, at) for row in (moved, still) for at, state in enumerate(["monday", "open"])]
        assert Ticket.states.import_history(said).imported == 2
        assert Ticket.states.import_history(said) == ImportResult(skipped=2)
        still.states.transition_to("closed")
        assert Ticket.states.import_history(said) == ImportResult(skipped=2)
        assert_clean(Ticket.states)

    def test_are_refused_where_it_does_not_lead_to_where_they_began(self):
        ticket = Ticket.objects.create(status="open")
        ticket.states.transition_to("closed")
        said = [entry(ticket, "monday", 1, "open")]
        [refusal] = Ticket.states.import_history(said).refusals
        assert refusal.reason == (
            "The row has 1 transitions already, the first from 'open', but the last entry leads to 'monday'. Add what is "
            "missing, or have it recorded as a gap with gaps='record'."
        )
        assert (refusal.status, len(recorded(ticket))) == ("closed", 1)
        assert Ticket.states.import_history(said, gaps="record").gaps == 1
        assert [each[1:3] for each in recorded(ticket)] == [("open", "monday"), ("monday", "open"), ("open", "closed")]
        assert_clean(Ticket.states)

    def test_are_refused_where_entries_are_later_than_their_own_records(self):
        ticket = Ticket.objects.create(status="open")
        ticket.states.transition_to("closed")
        ticket.states.history.update(transitioned_at=day(2))
        [refusal] = Ticket.states.import_history([entry(ticket, "open", 3)]).refusals
        assert "which is before the last entry" in refusal.reason
        assert len(recorded(ticket)) == 1

    def test_are_refused_where_their_start_is_recorded(self):
        row = Logged.objects.create()
        [refusal] = Logged.states.import_history([entry(row, "NEW", 1)]).refusals
        assert refusal.reason == (
            "The row has 1 transitions already, which do not say where the row was before them, and are not these entries. "
            "Import history before record_initial(), and give all entries of a key one after the other."
        )

    def test_are_refused_where_records_are_missing(self):
        ticket = Ticket.objects.create(status="open")
        ticket.states.transition_to("monday")
        ticket.states.transition_to("closed")
        ticket.states.history.filter(sequence=1).delete()
        assert Ticket.states.import_history([entry(ticket, "monday", 1)]).refused == 1
        ticket.states.history.all().delete()
        assert Ticket.states.import_history([entry(ticket, "monday", 1)]).refused == 1

    def test_leave_no_trace_of_a_lock_on_their_counter(self):
        """Whoever compared with the number of before is told that the row has changed, and not moved by mistake."""
        from statemachine_fields import ConcurrentTransition

        ticket = Ticket.objects.create(status="open")
        ticket.states.transition_to("monday")
        seen = ticket.status_sequence
        Ticket.states.import_history([entry(ticket, "open", 1)])
        with pytest.raises(ConcurrentTransition):
            ticket.states.transition_to("closed", expected=seen)


@not_mariadb
class TestWhatNamesAMove:
    """What is kept of a row and says by number which of its moves it is about."""

    def test_events_stay_with_the_move_that_took_them(self):
        row = Petition.objects.create()
        row.states.transition_to("OPEN")
        row.states.deliver("letter")
        row.states.deliver("denied")
        drain(Petition)
        said = [entry(row, "OPEN", 1, "DRAFT"), entry(row, "DRAFT", 2, "OPEN")]
        assert Petition.states.import_history(said).imported == 1
        moves = dict(row.states.history.values_list("sequence", "to_status"))
        assert [(event.name, moves[event.taken_by]) for event in row.states.events] == [
            ("letter", "HEARD"),
            ("denied", "DENIED"),
        ]
        assert_clean(Petition.states)

    def test_untaken_events_stay_untaken(self):
        row = Petition.objects.create()
        row.states.transition_to("OPEN")
        row.states.deliver("denied")
        assert Petition.states.import_history([entry(row, "DRAFT", 1, "OPEN")]).imported == 1
        assert row.states.events.get().taken_by is None
        assert_clean(Petition.states)

    def test_the_mark_of_children_left_behind_stays_with_the_move_that_left_them(self):
        gone, stays = Expedition.objects.create(), Expedition.objects.create()
        for row in (gone, stays):
            row.states.transition_to("WALKING")
        gone.states.transition_to("LATE")
        said = [
            entry(row, state, at) for row in (gone, stays) for at, state in enumerate(["GUIDED", "HOME", "PLANNED"])
        ]
        assert Expedition.states.import_history(said).imported == 2
        gone.refresh_from_db()
        stays.refresh_from_db()
        assert (gone.status_cancels, stays.status_cancels) == (5, 0)
        assert gone.states.history.get(sequence=5).from_status == "WALKING"


class TestKeys:
    def test_as_text_are_read_as_the_model_has_them(self):
        tickets = Ticket.objects.bulk_create(Ticket(pk=number, status="closed") for number in (1, 2, 10))
        said = [entry(str(ticket.pk), "closed", at) for ticket in tickets for at in (1, 2)]
        assert Ticket.states.import_history(sorted(said, key=lambda each: each["key"])).imported == 3
        assert_clean(Ticket.states)

    @pytest.mark.parametrize("as_given", [str, uuid.UUID])
    def test_of_other_kinds(self, as_given):
        parcel = Parcel.objects.create(status="LOST")
        assert Parcel.states.import_history([entry(as_given(str(parcel.pk)), "LOST", 1, "IN_TRANSIT")]).imported == 1
        coupon = Coupon.objects.create(code="a'b", status="DONE")
        assert Coupon.states.import_history([entry("a'b", "DONE", 1)]).imported == 1
        assert_clean(Parcel.states)
        assert coupon.states.history.count() == 1

    def test_of_a_multi_table_child_are_those_of_the_machines_model(self):
        car = Car.objects.create(status="MOVING", fuel_state="EMPTY")
        assert Car.states.import_history([entry(car, "MOVING", 1, "PARKED")]).imported == 1
        assert Car.fuel.import_history([entry(car, "EMPTY", 1, "FULL")]).imported == 1
        assert_clean(Vehicle.states)
        assert_clean(Car.fuel)

    def test_each_machine_of_a_model_has_its_own_past(self):
        invoice = Invoice.objects.create(payment_status="PAID")
        assert Invoice.payment.import_history([entry(invoice, "PAID", 1, "DUE")]).imported == 1
        assert recorded(invoice, "payment") == [(1, "DUE", "PAID", day(1))]
        assert recorded(invoice) == []

    def test_of_a_history_that_outlives_its_row(self):
        row = Kept.objects.create(status="DONE")
        assert Kept.states.import_history([entry(row, "DONE", 1, "NEW")]).imported == 1
        assert_clean(Kept.states)

    @pytest.mark.parametrize("has_begun", [False, True])
    def test_used_again_leave_the_history_of_the_row_before_alone(self, has_begun):
        row = Kept.objects.create(pk=41)
        row.states.transition_to("DONE")
        row.delete()
        Kept.objects.bulk_create([Kept(pk=41)])
        if has_begun:
            Kept.objects.get().states.transition_to("DONE")
        records = Kept.states.transition_model.objects.order_by("sequence").values_list("sequence", "from_status")
        there = list(records)
        other = Kept.objects.create(pk=42, status="DONE")
        result = Kept.states.import_history([entry(41, "NEW", 1, "DONE"), entry(other, "DONE", 1, "NEW")])
        assert (result.imported, [refusal.pk for refusal in result.refusals]) == (1, [41])
        assert list(records.filter(instance_id=41)) == there
        assert_clean(Kept.states)


class TestManyRows:
    def test_are_read_as_they_come_and_told_of(self):
        def entries():
            for ticket in tickets:
                written.append(Ticket.states.transition_model.objects.count())
                yield entry(ticket, "closed", 1)

        tickets = Ticket.objects.bulk_create(Ticket(status="closed") for _ in range(4))
        written: list[int] = []
        told: list[int] = []
        Ticket.states.import_history(entries(), progress=lambda result: told.append(result.imported))
        assert written == [0, 0, 1, 2]  # the first entry of a row tells that the one before it is complete
        assert told == [1, 2, 3, 4]

    def test_take_the_same_statements_each_however_long_their_history(self):
        tickets = Ticket.objects.bulk_create(Ticket(status="closed") for _ in range(3))
        states = ["open", "monday"] * 20 + ["closed"]
        said = [entry(ticket, state, at) for ticket in tickets for at, state in enumerate(states)]
        with CaptureQueriesContext(connection) as queries:
            assert Ticket.states.import_history(said).records == 123
        each = ["SELECT", "UPDATE", "INSERT"]
        if not connection.features.has_select_for_update:
            each = ["UPDATE", *each]  # the only lock there is
        assert [query["sql"].split()[0] for query in queries] == each * 3

    def test_long_histories_are_inserted_in_batches(self, ticket):
        states = ["open", "monday"] * 12 + ["closed"]
        said = [entry(ticket, state, at) for at, state in enumerate(states)]
        with CaptureQueriesContext(connection) as queries:
            Ticket.states.import_history(said, batch_size=10)
        assert sum(query["sql"].startswith("INSERT") for query in queries) == 3
        assert_clean(Ticket.states)

    def test_memory_holds_one_history_at_a_time(self):
        keys = [row.pk for row in Ticket.objects.bulk_create(Ticket(status="closed") for _ in range(300))]
        states = [(1, "open"), (2, "closed")]
        said = (entry(key, state, at, metadata={"x": f"{key}" * 3000}) for key in keys for at, state in states)
        tracemalloc.start()
        try:
            assert Ticket.states.import_history(said).records == 600
            peak = tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()
        assert peak < 600 * 3000  # which is less than a tenth of what there was

    def test_of_a_cursor_that_stays_open_meanwhile(self, transactional_db):
        """As histories are read: `iterator()` over a large table, on the connection that writes."""
        tickets = Ticket.objects.bulk_create(Ticket(status="closed", title="2019-05-01") for _ in range(30))
        refused = tickets[7]
        rows = Ticket.objects.order_by("pk").iterator(chunk_size=5)
        said = (entry(row, "open" if row == refused else "closed", 1) for row in rows)
        result = Ticket.states.import_history(said)
        assert (result.imported, [refusal.pk for refusal in result.refusals]) == (29, [refused.pk])

    def test_in_async_code(self, ticket, transactional_db):
        async def main():
            try:
                return await Ticket.states.aimport_history(said, gaps="record", past_states=["frozen"], batch_size=5)
            finally:
                await sync_to_async(connections.close_all)()

        said = [entry(ticket, "frozen", 1), entry(ticket, "closed", 2, "open")]
        assert asyncio.run(main()) == ImportResult(imported=1, records=3, gaps=1)

    @pytest.mark.parametrize("word", ["INSERT", "UPDATE"])
    def test_a_power_cut_leaves_each_row_whole_and_the_next_run_goes_on(self, word, transactional_db):
        def cut(execute, sql, params, many, context):
            if sql.startswith(word) and Ticket.states.transition_model.objects.count() >= 4:
                raise RuntimeError("power cut")
            return execute(sql, params, many, context)

        tickets = Ticket.objects.bulk_create(Ticket(status="open") for _ in range(4))
        tickets[2].states.transition_to("closed")
        said = [entry(ticket, state, at) for ticket in tickets for at, state in enumerate(["monday", "open"])]
        with pytest.raises(RuntimeError, match="power cut"), connection.execute_wrapper(cut):
            Ticket.states.import_history(said)
        assert_clean(Ticket.states)
        assert [ticket.states.history.count() for ticket in tickets] in ([2, 0, 1, 0], [2, 2, 1, 0])
        result = Ticket.states.import_history(said)
        assert result.skipped + result.imported == 4
        assert_clean(Ticket.states)
        assert [ticket.states.history.count() for ticket in tickets] == [2, 2, 3, 2]


class TestBesideOthers:
    @pytest.mark.skipif(connection.vendor != "postgresql", reason="asks PostgreSQL who waits")
    def test_a_row_is_locked_from_the_look_at_it_to_the_last_record(self, transactional_db):
        ticket = Ticket.objects.create(status="open")
        locked = threading.Event()

        def move():
            try:
                assert locked.wait(PATIENCE)
                Ticket.objects.get().states.transition_to("closed")
            finally:
                connections.close_all()

        def let_the_other_run_into_the_lock(execute, sql, *rest):
            result = execute(sql, *rest)
            if "FOR NO KEY UPDATE" in sql:
                locked.set()
                wait_until_blocked()
            return result

        thread = threading.Thread(target=move)
        thread.start()
        with connection.execute_wrapper(let_the_other_run_into_the_lock):
            Ticket.states.import_history([entry(ticket, "open", 1)])
        thread.join(PATIENCE)
        assert [each[:3] for each in recorded(ticket)] == [(1, "", "open"), (2, "open", "closed")]
        assert_clean(Ticket.states)

    @pytest.mark.skipif(connection.vendor == "sqlite", reason="one writer at a time, and the others give up")
    def test_whoever_moves_rows_meanwhile_every_history_is_whole(self, transactional_db):
        def move():
            for ticket in Ticket.objects.order_by("-pk"):
                ticket.states.transition_to("monday")
                ticket.states.transition_to("closed")

        tickets = Ticket.objects.bulk_create(Ticket(status="open") for _ in range(40))
        said = [entry(ticket, state, at) for ticket in tickets for at, state in enumerate(["monday", "open"])]
        results = together(move, lambda: Ticket.states.import_history(said), lambda: Ticket.states.import_history(said))
        assert results[0] is None
        assert [result.refusals for result in results[1:]] == [[], []]
        assert sum(result.imported for result in results[1:]) == 40
        assert {ticket.states.history.count() for ticket in tickets} == {4}
        assert_clean(Ticket.states)

    def test_a_row_that_a_worker_runs_is_left_to_it(self):
        chore = Chore.objects.create()
        held = timezone.now() + datetime.timedelta(minutes=5)
        with connection.cursor() as cursor:
            cursor.execute("UPDATE lab_chore SET status_lease_expires_at = %s, status_lease_owner = 'w'", [held])
        reason = refused_with(Chore.states, entry(chore, "NEW", 1))
        assert reason == (
            "A worker is running the row. Import it again later; rows that have their history are left alone."
        )

    def test_the_clock_of_a_row_is_left_alone(self):
        chore = Chore.objects.create()
        names = Chore.states._meta.names.schedule
        before = Chore.objects.values(*names).get()
        assert Chore.states.import_history([entry(chore, "NEW", 1)]).imported == 1
        assert Chore.objects.values(*names).get() == before
        assert_clean(Chore.states)

    def test_a_worker_goes_on_from_there(self):
        from statemachine_fields.testing import drain

        chore = Chore.objects.create()
        Chore.states.import_history([entry(chore, "HELD", 1), entry(chore, "NEW", 2)])
        drain(Chore)
        assert [each[2] for each in recorded(chore)] == ["HELD", "NEW", "DOING", "DONE"]
        assert_clean(Chore.states)


@pytest.mark.django_db(databases=["default", "other"])
def test_goes_to_the_database_that_is_named():
    ticket = Ticket.objects.using("other").create(status="closed")
    assert Ticket.states.import_history([entry(ticket, "closed", 1)], using="other").imported == 1
    assert Ticket.states.transition_model.objects.using("other").count() == 1
    assert Ticket.states.transition_model.objects.count() == 0


def test_the_command_that_verifies_finds_nothing():
    ticket = Ticket.objects.create(status="closed")
    said = [entry(ticket, "frozen", 1), entry(ticket, "open", 2, "monday"), entry(ticket, "closed", 3)]
    Ticket.states.import_history(said, gaps="record", past_states=["frozen"])
    out = StringIO()
    call_command("statemachine_verify", "lab.Ticket", "--strict", stdout=out)
    assert out.getvalue() == "lab.Ticket.states: 1 row, 4 records, 0 errors, 0 warnings\n"
