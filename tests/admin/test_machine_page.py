"""The page of a machine: how long rows stay, which moves they make, and which rows are stuck."""

from __future__ import annotations

import html
import itertools
import re
import uuid
from datetime import timedelta
from urllib.parse import urlsplit

import pytest
from django.apps import apps
from django.contrib import admin
from django.contrib.auth import get_user_model
from django.utils import timezone, translation

from lab.models import Car, Dossier, Invoice, Parcel, Vehicle
from shop.models import Order
from statemachine_fields.admin import StateMachineAdminMixin
from statemachine_fields.db.counting import first_of_each
from statemachine_fields.db.expressions import MachineValue
from statemachine_fields.machine.ids import uuid7_floor
from statemachine_fields.worker.models import RunStatistics
from tests.admin.browsing import page, queries, staff, text_of, words_of

pytestmark = pytest.mark.django_db

SCRIPT = "<script>alert(1)</script>"
HOUR, DAY = timedelta(hours=1), timedelta(days=1)

numbers = itertools.count(1)


def make(machine, *history, count=1, **values):
    """Create rows with a history of `(how long ago, from, to)`, and return them."""
    names = machine.names
    rows = [machine.model(**values) for _ in range(count)]
    for row in rows:
        row.save()
    now = timezone.now()
    if history:
        age, _source, target = history[-1]
        changes = {names.status: target, names.sequence: len(history), names.changed_at: now - age}
        found = machine.model._base_manager.filter(pk__in=[row.pk for row in rows])
        found.update(**{name: MachineValue(value) for name, value in changes.items()})
    machine.transition_model._base_manager.bulk_create(
        machine.build_record(
            id=id_at(now - age),
            instance_id=machine.key_of(row),
            sequence=sequence,
            transitioned_at=now - age,
            from_status=source,
            to_status=target,
        )
        for row in rows
        for sequence, (age, source, target) in enumerate(history, start=1)
    )
    for row in rows:
        row.refresh_from_db()
    return rows


def id_at(time):
    return uuid.UUID(int=uuid7_floor(time.timestamp()).int + next(numbers))


def order(*history, count=1, **values):
    return make(Order.states._meta, *history, count=count, **{"customer": "Ada", "total": 10, **values})


def look(client, model=Order, accessor="states", **params):
    response = client.get(page(model, "machine", accessor), params)
    assert response.status_code == 200
    return response


def table(response, caption):
    """Return the cells of the table of a caption, row by row, without markup."""
    content = response.content.decode()
    found = re.search(rf"<caption[^>]*>{caption}</caption>.*?<tbody>(.*?)</tbody>", content, re.DOTALL)
    if found is None:
        return []
    rows = re.findall(r"<tr.*?</tr>", found.group(1), re.DOTALL)
    return [[plain(cell) for cell in re.findall(r"<t[hd].*?</t[hd]>", row, re.DOTALL)] for row in rows]


def plain(markup):
    without = re.sub(r'<span class="visually-hidden">.*?</span>', "", markup)
    return " ".join(html.unescape(re.sub(r"<[^>]+>", " ", without)).split())


def stays(response):
    return table(response, "How long rows stay in each state")


def moves(response):
    return table(response, "Moves, the most used first")


def stuck(response):
    """Return the names of the rows that are shown as stuck, by state."""
    return {
        plain(re.search(r'<span class="smf-badge.*?</span>', body).group()): [
            plain(cell) for cell in re.findall(r'<th scope="row">.*?</th>', body, re.DOTALL)
        ]
        for body in re.findall(r"<tbody>(?:(?!</tbody>).)*smf-group.*?</tbody>", response.content.decode(), re.DOTALL)
    }


def link_of(response, text):
    found = re.search(rf'<a [^>]*href="([^"]*)">{text}', response.content.decode())
    return html.unescape(found.group(1)) if found else None


# How long rows stay


def test_stays_are_counted_and_measured_in_the_order_of_the_declaration(admin_client):
    order((5 * HOUR, "PENDING", "PAID"), (3 * HOUR, "PAID", "PACKED"), (2.5 * HOUR, "PACKED", "SHIPPED"))
    order((5 * HOUR, "PENDING", "PAID"), (1 * HOUR, "PAID", "PACKED"))

    assert stays(look(admin_client)) == [
        ["Paid", "2", "3 h", "3 h 54 min"],
        ["Packed", "1", "30 min", "30 min"],
    ]


def test_a_state_that_is_no_longer_declared_comes_last(admin_client):
    order((3 * HOUR, "PENDING", "MISLAID"), (HOUR, "MISLAID", "PACKED"), (HOUR / 2, "PACKED", "SHIPPED"))

    response = look(admin_client)

    assert [line[0] for line in stays(response)] == ["Packed", "MISLAID"]
    assert '<g class="smf-bar smf-undeclared">' in response.content.decode()


def test_chart_has_the_colours_of_the_badges_and_points_to_the_table(admin_client):
    order((3 * HOUR, "PENDING", "PAID"), (HOUR, "PAID", "PACKED"))

    content = look(admin_client).content.decode()

    tone = re.search(r'<th scope="row"><span class="smf-badge (smf-tone-\w+)">Paid', content).group(1)
    assert f'<g class="smf-bar {tone}"><title>Paid: half leave within 2 h, 95 of 100 within 2 h</title>' in content
    assert "The table beside it has the same numbers." in content


def test_nothing_on_record_is_said_in_words(admin_client):
    order()

    response = look(admin_client)

    assert "No row was moved in the past 7 days." in text_of(response)
    assert "No stay that both began and ended on record ended in the past 7 days." in text_of(response)
    assert "No row is stuck." in text_of(response)
    assert "smf-chart" not in response.content.decode()


# The window


def test_window_is_a_week_unless_another_is_chosen(admin_client):
    order((20 * DAY, "PENDING", "PAID"), (19 * DAY, "PAID", "PACKED"), (3 * DAY, "PACKED", "SHIPPED"))
    order((2 * HOUR, "PENDING", "PAID"))

    def counts(**params):
        return {line[0]: line[1] for line in moves(look(admin_client, **params)) if line[1] != "0"}

    week = {"Pending → Paid": "1", "Packed → Shipped": "1"}
    assert counts() == counts(days="7") == week
    assert counts(days="1") == {"Pending → Paid": "1"}
    assert (
        counts(days="30") == counts(days="90") == {"Pending → Paid": "2", "Paid → Packed": "1", "Packed → Shipped": "1"}
    )
    assert [line[0] for line in stays(look(admin_client, days="30"))] == ["Paid", "Packed"]
    assert [line[0] for line in stays(look(admin_client))] == ["Packed"]


@pytest.mark.parametrize("nonsense", ["", "8", "07", "-1", "1e3", "seven", "٧", "9" * 400, "7;DROP", "\x00"])
def test_a_window_that_is_not_offered_is_the_usual_one(admin_client, nonsense):
    response = look(admin_client, days=nonsense)

    assert re.findall(r'<a href="\?days=(\d+)" aria-current="true">', response.content.decode()) == ["7"]


def test_windows_are_links_and_the_current_one_is_marked(admin_client):
    content = look(admin_client, days="30").content.decode()

    assert re.findall(r'<a href="(\?days=\d+)"(?: aria-current="true")?>', content) == [
        "?days=1",
        "?days=7",
        "?days=30",
        "?days=90",
    ]
    assert '<a href="?days=30" aria-current="true">30 days</a>' in content


# Moves


def test_all_moves_are_listed_the_most_used_first_with_those_that_nobody_made(admin_client):
    order((5 * HOUR, "PENDING", "PAID"), (3 * HOUR, "PAID", "PACKED"), count=2)
    order((5 * HOUR, "", "PENDING"), (4 * HOUR, "PENDING", "PAID"))
    order((HOUR, "PENDING", "SHIPPED"))

    found = moves(look(admin_client))

    assert found[:4] == [
        ["Pending → Paid", "3", "1 h"],
        ["Paid → Packed", "2", "2 h"],
        ["new row → Pending", "1", "–"],
        ["Pending → Shipped not declared", "1", "–"],
    ]
    assert found[4:] == [
        [f"{move} not used", "0", "–"]
        for move in (
            "Pending → Cancelled",
            "Paid → Cancelled",
            "Packed → Shipped",
            "Shipped → Delivered",
            "Shipped → Returned",
            "Shipped → Lost",
            "Delivered → Returned",
        )
    ]


def test_graph_has_the_weights_of_moves_and_the_rows_of_now_with_links_to_them(admin_client):
    order((HOUR, "PENDING", "PAID"), count=3)
    order()

    content = look(admin_client).content.decode()

    edge = re.search(r'<g class="[^"]*" data-from="PENDING" data-to="PAID">.*?</g>', content, re.DOTALL).group()
    assert re.search(">(paid · )?3</text>", edge)
    url = html.unescape(re.search(r'<a href="([^"]*)" aria-label="Paid: 3">', content).group(1))
    listed = admin_client.get(url)
    assert (urlsplit(url).path, listed.context["cl"].result_count) == (page(Order), 3)


# Stuck rows


def test_rows_that_stay_longer_than_95_of_100_are_shown_the_oldest_first(admin_client):
    order((5 * HOUR, "PENDING", "PAID"), (3 * HOUR, "PAID", "PACKED"), count=3)  # 2 hours in PAID
    late = order((26 * HOUR, "PENDING", "PAID"))[0]
    later = order((50 * HOUR, "PENDING", "PAID"))[0]
    order((HOUR, "PENDING", "PAID"))  # in time

    response = look(admin_client)

    assert stuck(response)["Paid"] == [f"Order {later.pk} of Ada", f"Order {late.pk} of Ada"]
    assert "there for longer than 2 h, within which 95 of 100 left" in words_of(response)
    assert f'<a href="{page(Order, "change", late.pk)}">Order {late.pk} of Ada</a>' in response.content.decode()
    assert "2 days, 2 hours" in words_of(response)


def test_nothing_is_stuck_at_an_end(admin_client):
    order((200 * DAY, "PENDING", "CANCELLED"))

    assert stuck(look(admin_client)) == {}


def test_five_rows_of_a_state_are_shown_and_a_link_leads_to_all_of_them(admin_client):
    order((10 * DAY, "PENDING", "PAID"), count=8)
    order((10 * DAY, "PAID", "PACKED"), count=5)
    order((HOUR, "PENDING", "PAID"))
    order((5 * HOUR, "PENDING", "PAID"), (3 * HOUR, "PAID", "PACKED"), (2 * HOUR, "PACKED", "SHIPPED"))

    response = look(admin_client)

    assert {state: len(rows) for state, rows in stuck(response).items()} == {"Paid": 5, "Packed": 5}
    assert text_of(response).count(" more") == 1
    listed = admin_client.get(link_of(response, "and 3 more"))
    assert listed.context["cl"].result_count == 8


def test_a_row_of_a_timed_machine_says_what_its_clock_says_and_its_error(admin_client):
    row = order((10 * DAY, "PAID", "PACKED"))[0]
    broken = {"status_next_at": MachineValue(None), "status_error": MachineValue(f"No carrier.\n{SCRIPT}")}
    Order.objects.filter(pk=row.pk).update(**broken)

    response = look(admin_client)

    assert "Parked: No carrier." in words_of(response)
    assert f"No carrier. {SCRIPT}" in words_of(response)
    assert SCRIPT not in response.content.decode()


def test_a_row_that_moves_on_while_the_page_is_made_is_left_out(admin_client, monkeypatch):
    row = order((10 * DAY, "PENDING", "PAID"))[0]

    def find_and_move(querysets, limit):
        found = first_of_each(querysets, limit)
        Order.objects.get(pk=row.pk).states.transition_to("PACKED")
        return found

    monkeypatch.setattr("statemachine_fields.admin.stuck.first_of_each", find_and_move)

    assert stuck(look(admin_client)) == {}


# Several machines, and rows of several tables


def test_each_machine_of_a_model_has_a_page_of_its_own(admin_client):
    row = make(Invoice.states._meta, (10 * DAY, "", "DRAFT"))[0]
    make(Invoice.states._meta, (3 * HOUR, "", "DRAFT"), (HOUR, "DRAFT", "SENT"))
    make(Invoice.payment._meta, (3 * HOUR, "DUE", "PAID"), (HOUR, "PAID", "REFUNDED"))

    states, payment = look(admin_client, Invoice), look(admin_client, Invoice, "payment")

    assert stuck(states) == {"Draft": [str(row)]}
    assert [line[0] for line in stays(payment)] == ["Paid"]
    assert [line[0] for line in moves(states)][:2] == ["Draft → Sent", "new row → Draft"]
    assert ("Invoice: Status" in text_of(states), "Invoice: Payment status" in text_of(payment)) == (True, True)


def test_keys_of_every_kind_are_found(admin_client):
    parcel = make(Parcel.states._meta, (10 * DAY, "", "IN_TRANSIT"))[0]
    make(Parcel.states._meta, (3 * HOUR, "", "IN_TRANSIT"), (HOUR, "IN_TRANSIT", "SCANNED"))
    assert stuck(look(admin_client, Parcel)) == {"In transit": [str(parcel)]}


def test_a_multi_table_child_shows_its_own_rows_of_the_machine_of_its_parent(admin_client):
    make(Vehicle.states._meta, (10 * DAY, "PARKED", "MOVING"))
    make(Vehicle.states._meta, (3 * HOUR, "", "PARKED"), (HOUR, "PARKED", "MOVING"))
    car = Car.objects.create()
    Vehicle.objects.filter(pk=car.pk).update(status_changed_at=MachineValue(timezone.now() - 10 * DAY))

    response = look(admin_client, Car)

    assert stuck(response) == {"Parked": [str(car)]}
    assert look(admin_client, Car, "fuel").status_code == 200


# Who may see what


def test_who_may_view_rows_may_see_the_page(client):
    row = order((10 * DAY, "PENDING", "PAID"))[0]
    order((5 * HOUR, "PENDING", "PAID"), (3 * HOUR, "PAID", "PACKED"))

    assert stuck(look(staff(client, "view_order"))) == {"Paid": [str(row)]}


def test_who_is_not_logged_in_is_sent_to_the_login_and_who_may_not_view_rows_is_refused(client):
    assert client.get(page(Order, "machine", "states")).status_code == 302
    assert staff(client, "view_invoice").get(page(Order, "machine", "states")).status_code == 403


def test_a_machine_that_is_not_there_is_not_found(admin_client):
    assert admin_client.get(page(Order, "machine", "payment")).status_code == 404


def test_rows_of_others_are_neither_named_nor_counted(client):
    staff(client, "view_dossier", username="red")
    for team in ("red", "blue"):
        make(Dossier.states._meta, (10 * DAY, "OPEN", "LOST"), count=7, title=f"Of {team}", team=team)
    make(Dossier.states._meta, (5 * HOUR, "OPEN", "LOST"), (3 * HOUR, "LOST", "OPEN"), team="blue")

    response = look(client, Dossier)

    assert stuck(response) == {"Lost": ["Of red"] * 5}
    assert "and 2 more" in words_of(response)
    assert "Of blue" not in text_of(response)
    assert 'aria-label="Lost: 7"' in response.content.decode()


def test_querysets_that_are_empty_in_advance_take_no_part_in_the_question():
    rows = order(count=3)
    querysets = {"none": Order.objects.none(), "two": Order.objects.order_by("-pk"), "nobody": Order.objects.none()}

    assert first_of_each(querysets, 2) == {"none": [], "two": [rows[2].pk, rows[1].pk], "nobody": []}
    assert first_of_each({}, 2) == {}


def test_a_user_who_may_see_no_row_sees_an_empty_page(client, monkeypatch):
    order((10 * DAY, "PENDING", "PAID"))
    admin_class = type(admin.site.get_model_admin(Order))
    monkeypatch.setattr(admin_class, "get_queryset", lambda self, request: Order.objects.none())

    assert stuck(look(staff(client, "view_order"))) == {}


# Text is text


def test_markup_in_labels_names_and_statuses_is_only_text(admin_client):
    make(
        Dossier.states._meta,
        (9 * DAY, "OPEN", "CHECK"),
        (2 * HOUR, "CHECK", "<i>x</i>"),
        (HOUR, "<i>x</i>", "OPEN"),
    )
    make(Dossier.states._meta, (20 * DAY, "OPEN", "CHECK"), title=SCRIPT)

    response = look(admin_client, Dossier)

    content = response.content.decode()
    assert ('<b>Check</b> & "quotes" 100%' in text_of(response), "<b>Check" in content) == (True, False)
    assert ("<i>x</i>" in text_of(response), "<i>x" in content) == (True, False)
    assert (stuck(response)['<b>Check</b> & "quotes" 100%'], SCRIPT in content) == ([SCRIPT], False)


def test_page_has_no_script_and_no_style_in_its_text(admin_client):
    order((3 * HOUR, "PENDING", "PAID"), (HOUR, "PAID", "PACKED"))

    content = look(admin_client).content.decode()

    assert all("src=" in tag for tag in re.findall(r"<script[^>]*>", content))
    assert "<style" not in content
    assert "statemachine_fields/machine.css" in content


def test_page_speaks_the_language_of_the_reader(admin_client):
    with translation.override("de"):
        response = look(admin_client)

    assert '<html lang="de"' in response.content.decode()


# What workers did


def test_run_statistics_of_a_timed_machine_are_one_click_away(admin_client):
    for machine in ("shop.Order.states", "lab.Payment.states"):
        RunStatistics.objects.create(machine=machine, state="PAID", period=timezone.now(), kind="moved")

    listed = admin_client.get(link_of(look(admin_client), "What workers did"))

    assert [each.machine for each in listed.context["cl"].result_list] == ["shop.Order.states"]


def test_run_statistics_are_for_those_who_may_view_them(client):
    assert link_of(look(staff(client, "view_order")), "What workers did") is None
    assert link_of(look(staff(client, "view_order", "view_runstatistics")), "What workers did")


def test_there_are_no_run_statistics_of_a_machine_without_a_clock_nor_without_a_worker(admin_client, monkeypatch):
    assert link_of(look(admin_client, Invoice), "What workers did") is None

    installed = apps.is_installed
    monkeypatch.setattr(apps, "is_installed", lambda name: name != "statemachine_fields.worker" and installed(name))
    assert link_of(look(admin_client), "What workers did") is None


def test_run_statistics_that_are_not_registered_are_not_linked(admin_user, rf):
    site = admin.AdminSite()

    class OrderAdmin(StateMachineAdminMixin, admin.ModelAdmin):
        pass

    request = rf.get("/")
    request.user = get_user_model().objects.get(pk=admin_user.pk)
    response = OrderAdmin(Order, site).machine_view(request, "states")

    assert response.context_data["statistics_url"] == ""


# What it costs


@pytest.mark.parametrize("days", ["1", "90"])
def test_page_asks_eight_questions_at_most_however_many_rows_there_are(admin_client, days):
    url = page(Order, "machine", "states")
    assert len(queries(admin_client, url, {"days": days})) == 6  # the session, the user, and nothing is stuck

    for count in (6, 60):
        for source, target in (("PENDING", "PAID"), ("PAID", "PACKED"), ("PACKED", "SHIPPED")):
            order((110 * DAY, source, target), count=count)
        order((5 * HOUR, "PENDING", "PAID"), (HOUR, "PAID", "PACKED"), (HOUR, "PACKED", "SHIPPED"), count=count)

        assert len(queries(admin_client, url, {"days": days})) == 8  # and the stuck rows, and how many more there are


def test_moves_are_found_by_the_key(admin_client):
    counted = [sql for sql in queries(admin_client, page(Order, "machine", "states")) if "COUNT(*)" in sql]

    grouped = [sql for sql in counted if "GROUP BY" in sql and "orderstatetransition" in sql and "leaving" not in sql]
    assert len(grouped) == 1
    assert '"id" >= ' in grouped[0] or "`id` >= " in grouped[0]
    assert "ORDER BY" not in grouped[0].removesuffix("ORDER BY NULL")  # which is how MariaDB is told not to sort
