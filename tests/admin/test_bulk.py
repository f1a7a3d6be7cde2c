"""Moving many rows: the action for each state, the page that asks, and what comes of it."""

from __future__ import annotations

import datetime as dt
import html
import re
import threading

import pytest
from django.contrib.admin.models import LogEntry
from django.db import connection, transaction
from django.db.models import Count, OuterRef, Subquery
from django.test.utils import CaptureQueriesContext
from django.utils import timezone

from lab.admin import DossierAdmin
from lab.models import Dossier, Invoice, Reasoned
from shop.models import Order
from statemachine_fields.admin import bulk
from statemachine_fields.admin.base import MachineAdmin
from tests.admin.browsing import MOVER, act, choose, confirm, dossiers, messages_of, page, staff, text_of, words_of
from tests.patience import PATIENCE

pytestmark = pytest.mark.django_db


def test_there_is_an_action_for_each_state_that_a_move_leads_to(admin_client):
    dossiers(1)
    content = html.unescape(admin_client.get(page(Dossier)).content.decode())
    actions = re.findall(r'<option value="states_move_to_(\w+)">([^\n]*)</option>', content)

    assert actions == [
        ("OPEN", "Move to Open"),
        ("CHECK", 'Move to <b>Check</b> & "quotes" 100%'),
        ("DONE", "Move to Done"),
        ("LOST", "Move to Lost"),
        ("GONE", "Move to Gone"),
    ]


def test_actions_of_several_machines_say_which(admin_client):
    Invoice.objects.create()

    assert "Payment status: Move to Paid" in text_of(admin_client.get(page(Invoice)))


def test_who_may_only_look_has_no_such_action(client):
    rows = dossiers(1)
    staff(client, "view_dossier")

    assert "Move to" not in text_of(client.get(page(Dossier)))
    choose(client, rows, "CHECK", _confirm="1")
    assert not Dossier.states.transition_model.objects.exists()


def test_the_page_says_how_many_can_move_and_why_the_others_cannot(admin_client):
    rows = [*dossiers(3, status="CHECK", seal="lead"), *dossiers(2, status="CHECK"), *dossiers(4, status="LOST")]

    response = choose(admin_client, rows, "DONE")

    words = words_of(response)
    assert "3 of 9 selected rows can move to Done" in words
    assert "2 It has no seal." in words
    assert "4 There is no move from Lost to Done." in words
    assert "Yes, move 3 rows" in response.content.decode()
    assert not Dossier.states.transition_model.objects.exists()


def test_what_is_confirmed_moves_with_a_record_and_a_log_entry_each(client):
    rows = [*dossiers(3), *dossiers(2, status="LOST")]
    staff(client, *MOVER, username="ada")

    response = confirm(client, rows, "CHECK", choose(client, rows, "CHECK"), note="all at once")

    assert messages_of(response) == [
        '3 rows were moved to <b>Check</b> & "quotes" 100%.',
        '2 rows were not moved: There is no move from Lost to <b>Check</b> & "quotes" 100%.',
    ]
    records = Dossier.states.transition_model.objects.all()
    assert {(record.metadata["note"], record.metadata["actor"]["text"]) for record in records} == {
        ("all at once", "ada")
    }
    logged = LogEntry.objects.values_list("object_id", flat=True)
    assert sorted(map(int, logged)) == [row.pk for row in rows[:3]]


def test_a_confirmation_sent_twice_moves_once(admin_client):
    rows = dossiers(3, status="CHECK")
    shown = choose(admin_client, rows, "CHECK")

    confirm(admin_client, rows, "CHECK", shown)
    response = confirm(admin_client, rows, "CHECK", shown)

    assert messages_of(response) == ["3 rows were not moved: Changed or deleted since you saw the list."]
    assert Dossier.states.transition_model.objects.count() == 3


def test_a_row_that_changed_since_it_was_seen_is_left_alone(admin_client):
    rows = dossiers(3)
    shown = choose(admin_client, rows, "CHECK")
    other = Dossier.objects.get(pk=rows[0].pk)
    other.states.transition_to("LOST")
    other.states.transition_to("OPEN")
    Dossier.objects.get(pk=rows[1].pk).delete()

    response = confirm(admin_client, rows, "CHECK", shown)

    assert messages_of(response)[0].startswith("1 row was moved")
    assert "Changed or deleted" in messages_of(response)[1]


def test_a_permission_is_asked_for_each_row(client):
    rows = [*dossiers(2, team="ada"), *dossiers(1)]
    staff(client, *MOVER, username="ada")

    shown = choose(client, rows, "GONE")
    response = confirm(client, rows, "GONE", shown)

    assert "2 of 3 selected rows can move" in words_of(shown)
    assert messages_of(response) == [
        "2 rows were moved to Gone.",
        "1 row was not moved: You do not have the permission for this move.",
    ]


def test_a_form_that_all_rows_share_is_asked_once(admin_client):
    rows = dossiers(3, status="CHECK")

    shown = choose(admin_client, rows, "LOST")
    wrong = confirm(admin_client, rows, "LOST", shown, where="")
    confirm(admin_client, rows, "LOST", shown, where="in the cellar")

    assert 'name="where"' in shown.content.decode()
    assert "This field is required." in text_of(wrong)
    records = Dossier.states.transition_model.objects.all()
    assert [record.metadata["where"] for record in records] == ["in the cellar"] * 3


def test_rows_that_need_a_form_of_their_own_are_left_to_their_own_page(admin_client):
    rows = [*dossiers(1), *dossiers(2, status="CHECK", seal="lead")]

    shown = choose(admin_client, rows, "DONE")
    response = confirm(admin_client, rows, "DONE", shown)

    assert "2 of 3 selected rows can move to Done" in words_of(shown)
    assert "1 The move asks for details of each row." in words_of(shown)
    assert messages_of(response) == [
        "2 rows were moved to Done.",
        "1 row was not moved: The move asks for details of each row. Make it on the row's own page.",
    ]
    assert Dossier.objects.get(pk=rows[0].pk).status == "OPEN"


def test_all_rows_of_a_list_are_moved_however_many_pages_it_has(admin_client, monkeypatch):
    monkeypatch.setattr(DossierAdmin, "list_per_page", 10)
    monkeypatch.setattr(bulk, "TOGETHER", 7)
    rows = dossiers(25)
    dossiers(5, team="other")
    url = page(Dossier) + "?team="
    data = {"action": "states_move_to_CHECK", "_selected_action": [rows[0].pk], "select_across": "1"}

    shown = admin_client.post(url, data)
    seen_at = re.search(r'name="_seen_at" value="([^"]*)"', shown.content.decode()).group(1)
    response = admin_client.post(url, {**data, "_confirm": "1", "_seen_at": html.unescape(seen_at)}, follow=True)

    assert shown.content.decode().count('name="_selected_action"') == 1
    assert messages_of(response)[0].startswith("25 rows were moved")
    assert Dossier.objects.filter(status="OPEN").count() == 5


def test_more_rows_than_one_request_should_move_are_refused(admin_client, monkeypatch):
    monkeypatch.setattr(DossierAdmin, "bulk_limit", 4)
    rows = dossiers(5)

    for shown in (choose(admin_client, rows, "CHECK"), choose(admin_client, rows, "CHECK", _confirm="1", _seen_at="")):
        assert "You have selected 5 rows, and 4 are the most" in words_of(shown)
    assert not Dossier.states.transition_model.objects.exists()


def test_rows_beyond_those_asked_are_said_to_be_asked_later(admin_client, monkeypatch):
    monkeypatch.setattr(bulk, "ASKED", 2)
    rows = dossiers(5, status="CHECK", seal="lead")

    words = words_of(choose(admin_client, rows, "DONE"))

    assert "2 of 5 selected rows can move to Done" in words
    assert "3 more are asked only when they are moved." in words


def test_where_nothing_can_move_there_is_nothing_to_press(admin_client):
    content = choose(admin_client, dossiers(2, status="LOST"), "DONE").content.decode()

    assert "Yes, move" not in content
    assert "No, take me back" in content


def test_rows_of_others_are_not_moved(client):
    foreign = dossiers(2, team="grace")
    staff(client, *MOVER, username="ada")

    response = choose(client, foreign, "CHECK", _confirm="1", _seen_at="")

    assert messages_of(response) == []
    assert not Dossier.states.transition_model.objects.exists()


def test_fields_of_a_transition_base_are_filled_for_many_rows(client, admin_user, monkeypatch):
    monkeypatch.setattr(
        MachineAdmin, "get_transition_arguments", lambda *args: {"record": {"actor": args[1].user, "reason": "in bulk"}}
    )
    rows = [Reasoned.objects.create() for _ in range(2)]
    client.force_login(admin_user)

    choose(client, rows, "DONE", _confirm="1", _seen_at="")

    assert set(Reasoned.states.transition_model.objects.values_list("reason", flat=True)) == {"in bulk"}


@pytest.mark.parametrize(
    "seen_at",
    ["", "nonsense", "2026-99-99", "2026-05-01", "9999-12-31T23:59:59.999999+00:00", "0001-01-01T00:00:00+14:00"],
)
def test_nonsense_for_when_the_list_was_seen_does_no_harm(admin_client, seen_at):
    rows = dossiers(1)

    assert choose(admin_client, rows, "CHECK", _confirm="1", _seen_at=seen_at).status_code == 200


def test_moving_plain_rows_takes_a_constant_number_of_statements(admin_client):
    def statements(count):
        rows = Invoice.objects.bulk_create(Invoice() for _ in range(count))
        with CaptureQueriesContext(connection) as captured:
            act(admin_client, rows, "payment_move_to_PAID", _confirm="1")
        return len(captured)

    statements(2)
    assert statements(5) == statements(50)


@pytest.mark.parametrize(("to", "asked"), [("CHECK", 3), ("DONE", 4)])
def test_the_page_asks_one_question_for_the_states_and_one_for_rows_with_guards(admin_client, to, asked):
    def count(rows):
        with CaptureQueriesContext(connection) as captured:
            assert choose(admin_client, rows, to).status_code == 200
        return len(captured) - 2  # the session and the user

    few, many = dossiers(2, status="CHECK"), dossiers(50, status="CHECK")
    assert count(few) == count(many) == asked  # Django itself counts the list, for its action


def test_an_order_that_costs_little_is_said_not_to_be_taken_back(admin_client):
    rows = [Order.objects.create(customer="Ada", total=total, status="DELIVERED") for total in (5, 50)]

    words = words_of(choose(admin_client, rows, "RETURNED"))

    assert "1 of 2 selected rows can move to Returned" in words
    assert "1 What costs less than 20 is not taken back." in words


# What must not slip through


@pytest.mark.parametrize("method", ["has_change_permission", "has_move_permission"])
def test_a_permission_of_the_model_admin_is_asked_for_each_row(client, monkeypatch, method):
    rows = [*dossiers(2, title="mine"), *dossiers(1, title="hers")]
    monkeypatch.setattr(DossierAdmin, method, lambda self, request, obj=None: not obj or obj.title == "mine")
    staff(client, *MOVER)

    shown = choose(client, rows, "CHECK")
    response = confirm(client, rows, "CHECK", shown)

    assert "2 of 3 selected rows can move" in words_of(shown)
    assert messages_of(response)[1] == "1 row was not moved: You do not have the permission for this move."
    assert Dossier.objects.get(title="hers").status == "OPEN"


def test_a_permission_of_the_model_admin_is_asked_for_each_schedule(client, monkeypatch):
    mine, hers = (Order.objects.create(customer=name, total=1) for name in ("mine", "hers"))
    for order in (mine, hers):
        order.states.run_at(timezone.now() + dt.timedelta(hours=1))
    allows = lambda self, request, obj=None: not obj or obj.customer == "mine"  # noqa: E731
    monkeypatch.setattr("shop.admin.OrderAdmin.has_change_permission", allows, raising=False)
    staff(client, "view_order", "change_order")

    response = act(client, [mine, hers], "states_run_now")

    assert messages_of(response)[1] == "1 row was left alone: You do not have the permission for it."
    assert list(Order.states.due()) == [mine]


@pytest.mark.django_db(databases=["default", "other"])
def test_rows_of_another_database_are_the_ones_that_move(admin_client, monkeypatch):
    here, there = (Dossier.objects.using(alias).create(pk=4711, title=alias) for alias in ("default", "other"))
    given = DossierAdmin.get_queryset
    monkeypatch.setattr(DossierAdmin, "get_queryset", lambda self, request: given(self, request).using("other"))

    shown = choose(admin_client, [there], "CHECK")
    confirm(admin_client, [there], "CHECK", shown)

    for row in (here, there):
        row.refresh_from_db()
    assert (here.status, there.status) == ("OPEN", "CHECK")
    words = words_of(admin_client.get(page(Dossier, "machine", "states")))
    assert '→ to <b>Check</b> & "quotes" 100% 1' in words


def test_a_row_that_went_elsewhere_does_not_change_what_the_others_are_asked(admin_client):
    rows = dossiers(3, status="CHECK")
    shown = choose(admin_client, rows, "LOST")
    assert 'name="where"' in shown.content.decode()
    Dossier.objects.get(pk=rows[0].pk).states.force_transition_to("OPEN", reason="another form leads on from there")

    response = confirm(admin_client, rows, "LOST", shown, where="in the cellar")

    assert messages_of(response) == [
        "2 rows were moved to Lost.",
        "1 row was not moved: Changed or deleted since you saw the list.",
    ]


def test_rows_that_are_gone_are_counted(admin_client):
    rows = dossiers(2)
    shown = choose(admin_client, rows, "CHECK")
    Dossier.objects.all().delete()

    response = confirm(admin_client, rows, "CHECK", shown, _total="2")

    assert messages_of(response) == ["2 rows were not moved: Changed or deleted since you saw the list."]


def test_the_page_counts_what_a_queryset_that_groups_leaves(admin_client, monkeypatch):
    rows = [dossiers(1, team=team, title=str(number))[0] for number, team in enumerate("aabbbc")]
    teams = Dossier.objects.filter(team=OuterRef("team")).order_by().values("team").annotate(n=Count("pk")).values("n")
    given = DossierAdmin.get_queryset
    monkeypatch.setattr(
        DossierAdmin,
        "get_queryset",
        lambda self, request: given(self, request).annotate(mates=Subquery(teams)).filter(mates__gt=2),
    )

    assert "3 of 3 selected rows can move" in words_of(choose(admin_client, rows[:1], "CHECK", select_across="1"))


def test_only_rows_that_moved_are_logged(admin_client, monkeypatch):
    rows = dossiers(3)
    given = bulk.BulkRequest._may_go
    monkeypatch.setattr(
        bulk.BulkRequest, "_may_go", lambda self, row, outcome: row.pk != rows[0].pk and given(self, row, outcome)
    )

    confirm(admin_client, rows, "CHECK", choose(admin_client, rows, "CHECK"))

    assert sorted(map(int, LogEntry.objects.values_list("object_id", flat=True))) == [row.pk for row in rows[1:]]


@pytest.mark.django_db(transaction=True)
@pytest.mark.skipif("connection.vendor != 'postgresql'", reason="about a row that somebody else has locked")
def test_a_row_that_somebody_moves_at_the_same_time_is_theirs(admin_client):
    rows = dossiers(3)
    shown = choose(admin_client, rows, "CHECK")
    moved, go_on = threading.Event(), threading.Event()

    def somebody_else():
        with transaction.atomic():
            Dossier.objects.get(pk=rows[0].pk).states.transition_to("CHECK", metadata={"actor": "Grace"})
            moved.set()
            go_on.wait(PATIENCE)
        connection.close()

    other = threading.Thread(target=somebody_else)
    other.start()
    moved.wait(PATIENCE)
    threading.Timer(
        0.5, go_on.set
    ).start()  # while ours waits for the lock; had it not waited, the test would be the same
    response = confirm(admin_client, rows, "CHECK", shown)
    other.join(PATIENCE)

    assert messages_of(response)[0].startswith("2 rows were moved")
    logged = LogEntry.objects.values_list("object_id", flat=True)
    assert sorted(map(int, logged)) == [row.pk for row in rows[1:]]
    assert Dossier.objects.get(pk=rows[0].pk).status_sequence == 1  # the graph would have let it move again
