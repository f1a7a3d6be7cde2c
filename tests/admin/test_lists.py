"""The list of rows with machines: badges, the filter with its counts, the graph above it, and moves of many rows."""

from __future__ import annotations

import datetime as dt
import html
import re
import threading

import pytest
from django.contrib import admin
from django.contrib.admin.models import LogEntry
from django.contrib.admin.utils import label_for_field
from django.db import connection, models, transaction
from django.db.models import Count, OuterRef, Subquery
from django.test.utils import CaptureQueriesContext, isolate_apps
from django.utils import timezone

from lab.admin import DossierAdmin
from lab.models import Car, Dossier, Invoice, Reasoned
from shop.models import Order
from statemachine_fields import State, StateMachine
from statemachine_fields.admin import StateMachineAdminMixin, bulk
from statemachine_fields.admin.base import MachineAdmin
from statemachine_fields.db.counting import count_each
from tests.admin.browsing import messages_of, page, staff, text_of, words_of

pytestmark = pytest.mark.django_db

MOVER = ("view_dossier", "change_dossier")


def dossiers(count, **values):
    return Dossier.objects.bulk_create(Dossier(**values) for _ in range(count))


def choices(response):
    """Return what the filter by state offers."""
    found = re.search(r"By status.*?</ul>", response.content.decode(), re.DOTALL).group()
    return [html.unescape(text.strip()) for text in re.findall(r"<a [^>]*>([^<]*)</a>", found)]


def notes(response):
    """Return the counts on the graph, by address."""
    content = response.content.decode()
    links = re.findall(
        r'<a [^>]*?href="([^"]*)"[^>]*>(.*?)</a>', content[content.index(' class="smf-graph"') :], re.DOTALL
    )
    return {
        html.unescape(url): re.search(r'smf-note"[^>]*>([^<]*)<', inner).group(1)
        for url, inner in links
        if "smf-note" in inner
    }


# The list


def test_the_status_is_a_badge_that_can_still_be_sorted_by(admin_client):
    dossiers(1)

    response = admin_client.get(page(Dossier), {"o": "2"})

    assert (
        '<td class="field-status"><span class="smf-badge smf-tone-gray">Open</span></td>' in response.content.decode()
    )
    assert "sortable column-status sorted ascending" in " ".join(response.content.decode().split())


def test_a_model_admin_that_chose_no_columns_gets_the_statuses(admin_client):
    Invoice.objects.create()

    content = admin_client.get(page(Invoice)).content.decode()

    assert "field-status" in content
    assert "field-payment_status" in content


def test_the_status_can_be_the_link_to_the_row(admin_client, monkeypatch):
    monkeypatch.setattr(DossierAdmin, "list_display_links", ["status"])
    monkeypatch.setattr(DossierAdmin, "sortable_by", ["status"])
    (row,) = dossiers(1)

    content = admin_client.get(page(Dossier)).content.decode()

    assert re.search(rf'<a href="{page(Dossier, "change", row.pk)}[^"]*"><span class="smf-badge', content)
    assert re.search(r'class="sortable column-status', content)


def names_of_columns(model_admin, *names):
    return [str(label_for_field(column, model_admin.model, model_admin)) for column in model_admin._shown(names)]


def test_the_clocks_of_two_machines_are_told_apart():
    timed = {"states": [State("NEW", timeout_after=60, timeout_to="OLD"), ("OLD", "Old")], "initial": "NEW"}

    with isolate_apps("lab", "statemachine_fields"):

        class Parcel(models.Model):
            states = StateMachine(**timed, transitions={"NEW": ["OLD"]})
            billing = StateMachine(**timed, transitions={"NEW": ["OLD"]}, field="billing_status")

            class Meta:
                app_label = "lab"

    own = type("Own", (StateMachineAdminMixin, admin.ModelAdmin), {})(Parcel, admin.AdminSite())

    assert names_of_columns(own, Parcel.states._meta.names.next_at, Parcel.billing._meta.names.next_at) == [
        "status: what is next",
        "billing status: what is next",
    ]
    assert names_of_columns(admin.site.get_model_admin(Order), "status_next_at") == ["what is next"]


# Counts


def test_the_filter_counts_rows_of_each_state(admin_client):
    dossiers(3)
    dossiers(2, status="LOST")

    assert choices(admin_client.get(page(Dossier))) == [
        "All",
        "Open (3)",
        '<b>Check</b> & "quotes" 100% (0)',
        "Done (0)",
        "Lost (2)",
        "Gone (0)",
    ]


def test_counts_stop_at_their_limit(admin_client, monkeypatch):
    monkeypatch.setattr(DossierAdmin, "count_limit", 1000)
    dossiers(1001)
    dossiers(1000, status="LOST")

    response = admin_client.get(page(Dossier))

    assert choices(response)[1:5:3] == ["Open (1,000+)", "Lost (1,000)"]
    assert notes(response)["?status__exact=OPEN"] == "1,000+"


def test_counts_are_of_rows_that_the_user_may_see(client):
    dossiers(3, team="grace")
    dossiers(2, team="ada")

    response = staff(client, *MOVER, username="ada").get(page(Dossier))

    assert "Open (2)" in choices(response)
    assert notes(response)["?status__exact=OPEN"] == "2"


def test_djangos_own_counts_take_the_place_of_ours(admin_client):
    dossiers(3, team="ada")
    dossiers(2)

    assert "Open (3)" in choices(admin_client.get(page(Dossier), {"_facets": "True", "team": "ada"}))


def test_a_filter_narrows_the_list_and_marks_the_state_on_the_graph(admin_client):
    dossiers(3)
    dossiers(2, status="LOST")

    response = admin_client.get(page(Dossier), {"status__exact": "LOST", "team": ""})

    assert len(response.context["cl"].result_list) == 2
    wide, _, phone = response.content.decode().partition('class="smf-phone"')
    assert [len(re.findall(r'class="[^"]*\bsmf-current\b', drawing)) for drawing in (wide, phone)] == [1, 1]
    assert "?status__exact=OPEN&team=" in notes(response)


def test_the_list_asks_one_question_more_than_djangos_own(rf, admin_user):
    class Plain(admin.ModelAdmin):
        list_display, list_filter = DossierAdmin.list_display, DossierAdmin.list_filter

    def asked(model_admin):
        request = rf.get(page(Dossier))
        request.user = admin_user
        with CaptureQueriesContext(connection) as captured:
            model_admin.changelist_view(request).render()
        return [query["sql"] for query in captured]

    dossiers(3)
    ours, plain = (asked(kind(Dossier, admin.site)) for kind in (DossierAdmin, Plain))

    assert len(ours) == len(plain) + 1 == 5


def test_two_machines_have_two_graphs(admin_client):
    Invoice.objects.create()

    assert admin_client.get(page(Invoice)).content.decode().count(' class="smf-drawing"') == 2


def test_a_child_of_another_table_is_counted(admin_client):
    Car.objects.create()

    assert admin_client.get(page(Car)).status_code == 200


def test_a_popup_has_no_graph(admin_client):
    assert "smf-graph" not in admin_client.get(page(Dossier), {"_popup": "1"}).content.decode()


def test_counting_needs_one_statement_and_knows_empty_querysets(django_assert_num_queries):
    dossiers(5)
    rows = Dossier.objects.all()

    with django_assert_num_queries(1):
        assert count_each({"all": rows, "none": rows.none(), "few": rows.filter(team="x")}, 3) == {
            "all": 4,
            "none": 0,
            "few": 0,
        }
    assert count_each({"none": rows.none()}, 3) == {"none": 0}


# Moves of many rows


def choose(client, rows, to, model=Dossier, accessor="states", **fields):
    """Choose the action "Move to …" for rows."""
    data = {"action": f"{accessor}_move_to_{to}", "_selected_action": [row.pk for row in rows], **fields}
    return client.post(page(model), data, follow=True)


def confirm(client, rows, to, shown, **fields):
    seen_at = re.search(r'name="_seen_at" value="([^"]*)"', shown.content.decode()).group(1)
    return choose(client, rows, to, _confirm="1", _seen_at=html.unescape(seen_at), **fields)


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
    assert messages_of(response)[0] == "2 rows were moved to Done."
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

    choose(client, rows, "DONE", model=Reasoned, _confirm="1", _seen_at="")

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
            data = {"action": "payment_move_to_PAID", "_selected_action": [row.pk for row in rows], "_confirm": "1"}
            admin_client.post(page(Invoice), data)
        return len(captured)

    statements(2)
    assert statements(5) == statements(50)


@pytest.mark.parametrize(("to", "asked"), [("CHECK", 3), ("DONE", 4)])
def test_the_page_asks_one_question_for_the_states_and_one_for_rows_with_guards(admin_client, to, asked):
    def count(rows):
        with CaptureQueriesContext(connection) as captured:
            choose_quietly(rows)
        return len(captured) - 2  # the session and the user

    def choose_quietly(rows):
        data = {"action": f"states_move_to_{to}", "_selected_action": [row.pk for row in rows]}
        assert admin_client.post(page(Dossier), data).status_code == 200

    few, many = dossiers(2, status="CHECK"), dossiers(50, status="CHECK")
    assert count(few) == count(many) == asked  # Django itself counts the list, for its action


def test_an_order_that_costs_little_is_said_not_to_be_taken_back(admin_client):
    rows = [Order.objects.create(customer="Ada", total=total, status="DELIVERED") for total in (5, 50)]

    words = words_of(choose(admin_client, rows, "RETURNED", model=Order))

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


def test_a_permission_of_the_model_admin_is_asked_for_each_clock(client, monkeypatch):
    mine, hers = (Order.objects.create(customer=name, total=1) for name in ("mine", "hers"))
    for order in (mine, hers):
        order.states.run_at(timezone.now() + dt.timedelta(hours=1))
    allows = lambda self, request, obj=None: not obj or obj.customer == "mine"  # noqa: E731
    monkeypatch.setattr("shop.admin.OrderAdmin.has_change_permission", allows, raising=False)
    staff(client, "view_order", "change_order")

    response = client.post(
        page(Order), {"action": "states_run_now", "_selected_action": [mine.pk, hers.pk]}, follow=True
    )

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


def test_rows_that_need_their_own_form_are_said_to(admin_client):
    rows = [*dossiers(1), *dossiers(1, status="CHECK", seal="lead")]

    response = confirm(admin_client, rows, "DONE", choose(admin_client, rows, "DONE"))

    assert messages_of(response)[1] == (
        "1 row was not moved: The move asks for details of each row. Make it on the row's own page."
    )


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
    for number, team in enumerate("aabbbc"):
        dossiers(1, team=team, title=str(number))
    teams = Dossier.objects.filter(team=OuterRef("team")).order_by().values("team").annotate(n=Count("pk")).values("n")
    given = DossierAdmin.get_queryset
    monkeypatch.setattr(
        DossierAdmin,
        "get_queryset",
        lambda self, request: given(self, request).annotate(mates=Subquery(teams)).filter(mates__gt=2),
    )
    data = {"action": "states_move_to_CHECK", "_selected_action": ["1"], "select_across": "1"}

    assert "3 of 3 selected rows can move" in words_of(admin_client.post(page(Dossier), data))


def test_only_rows_that_moved_are_logged(admin_client, monkeypatch):
    rows = dossiers(3)
    given = bulk.BulkMove._may_go
    monkeypatch.setattr(
        bulk.BulkMove, "_may_go", lambda self, row, outcome: row.pk != rows[0].pk and given(self, row, outcome)
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
            go_on.wait(30)
        connection.close()

    other = threading.Thread(target=somebody_else)
    other.start()
    moved.wait(30)
    threading.Timer(
        0.5, go_on.set
    ).start()  # while ours waits for the lock; had it not waited, the test would be the same
    response = confirm(admin_client, rows, "CHECK", shown)
    other.join(30)

    assert messages_of(response)[0].startswith("2 rows were moved")
    logged = LogEntry.objects.values_list("object_id", flat=True)
    assert sorted(map(int, logged)) == [row.pk for row in rows[1:]]
    assert Dossier.objects.get(pk=rows[0].pk).status_sequence == 1  # the graph would have let it move again
