"""The audit pages of the admin, by clicking, and the plain ModelAdmin of the reference page."""

import datetime as dt
import html
import re
import uuid

import pytest
from django.db import connection, connections
from django.test.utils import CaptureQueriesContext
from django.utils import timezone, translation

from lab.models import Car, Invoice, Kept, Parcel, Protected, Reasoned, Ticket, Vehicle
from reference.models import TaskExecution
from shop.models import Order, OrderStateTransition
from statemachine_fields.admin import StateTransitionAdmin, TransitionPaginator
from statemachine_fields.machine import questions
from statemachine_fields.machine.ids import uuid7_floor
from tests.admin.browsing import page, queries, staff, text_of, words_of

pytestmark = pytest.mark.django_db

SCRIPT = "<script>alert(1)</script>"
only_postgresql = pytest.mark.skipif("connection.vendor != 'postgresql'", reason="reads a plan of PostgreSQL")


def order(**values):
    return Order.objects.create(**{"customer": "Ada", "total": 10, **values})


def record(number, instance, **values):
    return OrderStateTransition(
        **{
            "instance": instance,
            "sequence": number,
            "from_status": "PENDING",
            "to_status": "PAID",
            "transitioned_at": timezone.now(),
            "metadata": {"number": number},
            **values,
        }
    )


def make_records(count, instance=None, start=1):
    instance = instance or order()
    OrderStateTransition.objects.bulk_create(record(number, instance) for number in range(start, start + count))
    return instance


def sequences(response):
    return [result.sequence for result in response.context["cl"].result_list]


def link(response, rel):
    found = re.search(rf'<a href="([^"]*)" rel="{rel}"', response.content.decode())
    return html.unescape(found.group(1)) if found else None


# The list


def test_list_shows_when_which_row_the_move_by_label_and_the_metadata(admin_client):
    row = order()
    row.states.transition_to("PAID", metadata={"by": "card"})

    response = admin_client.get(page(OrderStateTransition))

    moved_at = timezone.localtime(OrderStateTransition.objects.get().transitioned_at)
    assert "Pending → Paid" in words_of(response)
    assert "by=card" in text_of(response)
    assert f"{moved_at:%H:%M:%S}" in text_of(response)
    assert f'<a href="{page(Order, "change", row.pk)}">Order {row.pk}</a>' in response.content.decode()


def test_list_shows_a_retired_state_by_its_value_and_a_first_record_without_source(admin_client):
    OrderStateTransition.objects.bulk_create([record(1, order(), from_status="", to_status="MISLAID")])

    assert "- → MISLAID" in words_of(admin_client.get(page(OrderStateTransition)))


def test_list_shortens_metadata_to_one_line(admin_client):
    OrderStateTransition.objects.bulk_create([record(1, order(), metadata={"note": "line\n" * 100})])

    shown = re.search(r'field-metadata_line">([^<]*)<', admin_client.get(page(OrderStateTransition)).content.decode())

    assert len(html.unescape(shown.group(1))) == 100
    assert shown.group(1).endswith("…")


def test_list_never_calls_the_rows_own_str(admin_client, monkeypatch):
    make_records(3)
    monkeypatch.setattr(Order, "__str__", lambda self: pytest.fail("a query for each record"))

    assert admin_client.get(page(OrderStateTransition)).status_code == 200


def test_list_links_no_row_whose_pages_the_user_may_not_see(client):
    row = make_records(1)

    response = staff(client, "view_orderstatetransition").get(page(OrderStateTransition))

    assert f"Order {row.pk}" in text_of(response)
    assert page(Order, "change", row.pk) not in response.content.decode()


def test_list_links_no_row_whose_model_is_not_registered(admin_client):
    ticket = Ticket.objects.create()
    ticket.states.transition_to("monday")

    assert f"Ticket {ticket.pk}" in text_of(admin_client.get(page(Ticket.states.transition_model)))


def test_labels_are_in_the_language_of_the_reader(admin_client):
    Ticket.objects.create().states.transition_to("monday")

    with translation.override("de"):
        response = admin_client.get(page(Ticket.states.transition_model))

    assert "→ Montag" in words_of(response)


@pytest.mark.parametrize(
    "params",
    [
        {},
        {"p": 2},
        {"to_status__exact": "PAID"},
        {"from_status__exact": "PENDING", "p": 2},
        {"when": "year"},
        {"q": "{pk}"},
        {"q": "{pk}", "p": 2},
    ],
    ids=str,
)
def test_list_asks_three_questions_however_many_records_there_are(admin_client, monkeypatch, params):
    monkeypatch.setattr(StateTransitionAdmin, "list_per_page", 5)
    row = make_records(10)
    params = {name: str(value).format(pk=row.pk) for name, value in params.items()}
    few = queries(admin_client, page(OrderStateTransition), params)
    make_records(290, row, start=11)

    monkeypatch.setattr(StateTransitionAdmin, "list_per_page", 100)
    many = queries(admin_client, page(OrderStateTransition), params)

    assert len(few) == len(many) == 3  # the session, the user, the records
    assert not [sql for sql in many if re.search(r"COUNT\(|DISTINCT|\bJOIN\b", sql, re.IGNORECASE)]


def test_list_cannot_be_sorted_by_another_column(admin_client):
    make_records(3)

    response = admin_client.get(page(OrderStateTransition), {"o": "3"})

    assert sequences(response) == [3, 2, 1]
    assert "sortable" not in response.content.decode()


def test_list_of_a_user_with_permissions_asks_the_same_for_more_records(client):
    staff(client, "view_orderstatetransition", "view_order")
    row = make_records(10)
    few = queries(client, page(OrderStateTransition))
    make_records(90, row, start=11)

    assert len(queries(client, page(OrderStateTransition))) == len(few) == 5  # and two for permissions


# Pages


def test_pager_links_the_neighbours_and_prints_no_total(admin_client):
    make_records(250)

    first = admin_client.get(page(OrderStateTransition))
    second = admin_client.get(page(OrderStateTransition) + link(first, "next"))
    last = admin_client.get(page(OrderStateTransition) + link(second, "next"))

    assert [len(sequences(response)) for response in (first, second, last)] == [100, 100, 50]
    assert link(first, "prev") is None
    assert link(second, "prev") == "?p=1"
    assert link(last, "next") is None
    assert "1 2 Next" in " ".join(text_of(first).split())
    assert "Previous 1 2 3 Next" in " ".join(text_of(second).split())
    assert "250 " not in text_of(second)
    assert "200 transitions" not in text_of(second)


def test_single_page_says_how_many_records_it_has(admin_client):
    make_records(3)

    response = admin_client.get(page(OrderStateTransition))

    assert "3 transitions" in text_of(response)
    assert link(response, "next") is None


def test_full_page_that_is_the_last_has_no_next(admin_client):
    make_records(100)

    assert link(admin_client.get(page(OrderStateTransition)), "next") is None


@pytest.mark.parametrize("number", ["0", "-1", "4", "101", "99999999999999999999"])
def test_page_that_does_not_exist_leads_back_to_the_first(admin_client, number):
    make_records(3)

    response = admin_client.get(page(OrderStateTransition), {"p": number})

    assert response.status_code == 302
    assert admin_client.get(response.url).status_code == 200


@pytest.mark.parametrize("search", [False, True])
def test_every_record_is_reached_although_the_pages_end(admin_client, monkeypatch, search):
    monkeypatch.setattr(StateTransitionAdmin, "list_per_page", 10)
    monkeypatch.setattr(TransitionPaginator, "max_rows", 30)
    row = make_records(75)
    url = page(OrderStateTransition)
    seen, following = [], f"?q={row.pk}" if search else "?to_status__exact=PAID"
    while following:
        response = admin_client.get(url + following)
        seen += sequences(response)
        following = link(response, "next")
        assert int(response.context["cl"].page_num) <= 3

    assert seen == list(range(75, 0, -1))
    newest = re.search(r'<a href="([^"]*)" role="button">« Newest', response.content.decode()).group(1)
    assert sequences(admin_client.get(url + html.unescape(newest)))[0] == 75


def test_search_from_a_page_of_older_records_is_for_all_records(admin_client):
    make_records(3)
    oldest = OrderStateTransition.objects.earliest("sequence")

    response = admin_client.get(page(OrderStateTransition), {"id__lt": oldest.pk, "to_status__exact": "PAID"})

    form = re.search(r'<form id="changelist-search".*?</form>', response.content.decode(), re.DOTALL).group()
    assert "to_status__exact" in form
    assert "id__lt" not in form


def test_paginator_gives_the_first_page_for_nonsense():
    make_records(3)
    paginator = TransitionPaginator(OrderStateTransition.objects.all(), 2)

    assert [paginator.get_page(number).number for number in ("x", None, 0, 7, 2)] == [1, 1, 1, 1, 2]


# Filters and search


def test_filters_offer_the_declared_states_and_narrow_the_list(admin_client):
    row = order()
    for status in ("PAID", "PACKED", "SHIPPED"):
        row.states.transition_to(status)
    url = page(OrderStateTransition)

    assert "?to_status__exact=RETURNED" in admin_client.get(url).content.decode()
    assert sequences(admin_client.get(url, {"to_status__exact": "PACKED"})) == [2]
    assert sequences(admin_client.get(url, {"from_status__exact": "PACKED"})) == [3]
    assert sequences(admin_client.get(url, {"to_status__exact": "nonsense"})) == []


@pytest.mark.parametrize(
    ("period", "found"),
    [("today", [5]), ("week", [5, 4]), ("month", [5, 4, 3]), ("year", [5, 4, 3, 2]), ("nonsense", [5, 4, 3, 2, 1])],
)
def test_when_filter_finds_recent_records(client, admin_user, monkeypatch, period, found):
    now = dt.datetime(2026, 5, 20, 12, tzinfo=dt.UTC)
    monkeypatch.setattr(timezone, "now", lambda: now)
    row = order()
    for number, days in enumerate([400, 100, 15, 3, 0], start=1):
        moved_at = now - dt.timedelta(days=days)
        key = uuid7_floor(moved_at.timestamp())
        OrderStateTransition.objects.bulk_create([record(number, row, id=key, transitioned_at=moved_at)])
    client.force_login(admin_user)

    assert sequences(client.get(page(OrderStateTransition), {"when": period})) == found


def test_when_filter_allows_for_clocks_that_differ_and_for_imported_history(admin_client):
    row, now = order(), timezone.now()
    behind = uuid7_floor((now - dt.timedelta(hours=20)).timestamp())
    OrderStateTransition.objects.bulk_create(
        [record(1, row, transitioned_at=now - dt.timedelta(days=500)), record(2, row, id=behind, transitioned_at=now)]
    )

    assert sequences(admin_client.get(page(OrderStateTransition), {"when": "today"})) == [2]


def test_when_filter_goes_by_the_time_alone_where_ids_do_not_sort_by_it(admin_client, monkeypatch):
    monkeypatch.setattr(questions, "sorts_ids_by_time", lambda connection: False)  # as MariaDB until 10.11.5
    OrderStateTransition.objects.bulk_create([record(1, order(), id=uuid7_floor(0), transitioned_at=timezone.now())])

    assert sequences(admin_client.get(page(OrderStateTransition), {"when": "today"})) == [1]


def test_search_finds_the_history_of_one_row_most_recent_first(admin_client):
    make_records(2)
    row = make_records(3)

    assert sequences(admin_client.get(page(OrderStateTransition), {"q": f" {row.pk} "})) == [3, 2, 1]


def test_search_finds_a_row_by_a_uuid(admin_client):
    parcels = [Parcel.objects.create(), Parcel.objects.create()]
    for parcel in parcels:
        parcel.states.transition_to("SCANNED")

    response = admin_client.get(page(Parcel.states.transition_model), {"q": str(parcels[0].pk)})

    assert [result.instance_id for result in response.context["cl"].result_list] == [parcels[0].pk]


def test_search_finds_a_row_whose_key_is_its_parents(admin_client):
    car = Car.objects.create()
    car.fuel.transition_to("EMPTY")

    assert sequences(admin_client.get(page(Car.fuel.transition_model), {"q": str(car.pk)})) == [1]


@pytest.mark.parametrize("term", ["nonsense", "1.5", "9" * 30, "9" * 5000, "1; DROP TABLE", "∞", SCRIPT])
@pytest.mark.parametrize("machine", [Order.states, Parcel.states, Car.fuel], ids=str)
def test_search_for_what_is_no_key_finds_nothing_and_says_so(admin_client, machine, term):
    row = machine.model.objects.create(**({"customer": "Ada", "total": 1} if machine is Order.states else {}))
    getattr(row, machine.accessor).transition_to(machine.transitions[machine.initial][0])

    response = admin_client.get(page(machine.transition_model), {"q": term})

    assert response.status_code == 200
    assert sequences(response) == []
    assert "not a valid primary key" in text_of(response)
    assert SCRIPT not in response.content.decode()


@pytest.mark.parametrize("term", ["", "  "])
def test_empty_search_finds_everything(admin_client, term):
    make_records(2)

    assert sequences(admin_client.get(page(OrderStateTransition), {"q": term})) == [2, 1]


def test_search_help_says_what_is_searched(admin_client):
    assert "complete primary key" in text_of(admin_client.get(page(OrderStateTransition)))


# One record


def test_record_page_shows_everything_and_links_the_row(admin_client):
    row = order(customer="Ada")
    made = row.states.transition_to("PAID", metadata={"by": {"card": [1, 2]}})
    url = page(OrderStateTransition, "change", made.pk)

    response = admin_client.get(url)

    content = response.content.decode()
    assert f'<a href="{page(Order, "change", row.pk)}">Order {row.pk} of Ada</a>' in content
    assert "Pending (PENDING)" in content
    assert "Paid (PAID)" in content
    assert str(made.pk) in content
    assert '<pre>{\n  "by": {\n    "card": [' in html.unescape(content)
    assert 'name="_save"' not in content
    assert "deletelink" not in content
    assert len(queries(admin_client, url)) == 4  # the session, the user, the record, the row


def test_record_page_shows_the_fields_of_a_transition_base(admin_client, admin_user):
    row = Reasoned.objects.create()
    made = row.states.transition_to("DONE", record={"actor": admin_user, "reason": "it was time"})

    shown = text_of(admin_client.get(page(Reasoned.states.transition_model, "change", made.pk)))

    assert "it was time" in shown
    assert admin_user.get_username() in shown


def test_record_page_shows_a_retired_state_by_its_value(admin_client):
    made = record(1, order(), from_status="", to_status="MISLAID")
    OrderStateTransition.objects.bulk_create([made])

    shown = text_of(admin_client.get(page(OrderStateTransition, "change", made.pk)))

    assert "MISLAID" in shown
    assert "MISLAID (" not in shown


def test_record_that_does_not_exist_leads_back(admin_client):
    for key in (uuid.uuid4(), "nonsense"):
        assert admin_client.get(page(OrderStateTransition, "change", key)).status_code == 302


def test_what_users_wrote_is_escaped_on_every_page(admin_client, monkeypatch):
    for name in ("from_status", "to_status"):
        field = OrderStateTransition._meta.get_field(name)
        monkeypatch.setattr(field, "choices", [("PENDING", SCRIPT), ("PAID", SCRIPT)])
    row = order(customer=SCRIPT)
    made = row.states.transition_to("PAID", metadata={SCRIPT: [SCRIPT, "</pre>"]})

    for url in (page(OrderStateTransition), page(OrderStateTransition, "change", made.pk)):
        content = admin_client.get(url).content.decode()
        assert SCRIPT not in content
        assert html.escape(SCRIPT) in content
        assert "</pre>&quot;" not in content


@pytest.mark.skipif("connection.vendor != 'sqlite'", reason="the other databases refuse such JSON")
def test_metadata_that_is_no_valid_text_is_shown(admin_client):
    made = record(1, order(), metadata={"half": "\ud83d", "none": "\x00"})
    OrderStateTransition.objects.bulk_create([made])

    for url in (page(OrderStateTransition), page(OrderStateTransition, "change", made.pk)):
        assert r"\ud83d" in text_of(admin_client.get(url))


# Permissions


def test_view_permission_opens_the_pages(client):
    made = order().states.transition_to("PAID")
    staff(client, "view_orderstatetransition")

    assert client.get(page(OrderStateTransition)).status_code == 200
    assert client.get(page(OrderStateTransition, "change", made.pk)).status_code == 200
    assert client.get(page(OrderStateTransition, "history", made.pk)).status_code == 200


def test_staff_without_the_permission_are_refused(client):
    made = order().states.transition_to("PAID")
    staff(client, "view_order", "change_order", "delete_order")

    for name, *args in [("changelist",), ("change", made.pk), ("delete", made.pk), ("history", made.pk), ("add",)]:
        assert client.get(page(OrderStateTransition, name, *args)).status_code == 403


@pytest.mark.parametrize("superuser", [True, False])
def test_nobody_adds_changes_or_deletes_a_record(client, admin_user, superuser):
    if superuser:
        client.force_login(admin_user)
    else:
        staff(client, "view_orderstatetransition", "delete_order", "change_order", "view_order")
    made = order().states.transition_to("PAID")

    for name, *args in [("add",), ("change", made.pk), ("delete", made.pk)]:
        assert client.post(page(OrderStateTransition, name, *args), {"post": "yes"}).status_code == 403
    assert client.get(page(OrderStateTransition, "add")).status_code == 403
    assert client.get(page(OrderStateTransition, "delete", made.pk)).status_code == 403
    assert OrderStateTransition.objects.get().to_status == "PAID"


def test_list_has_no_actions_and_accepts_none(admin_client):
    made = order().states.transition_to("PAID")
    action = {"action": "delete_selected", "_selected_action": [str(made.pk)], "post": "yes"}

    admin_client.post(page(OrderStateTransition), action)
    content = admin_client.get(page(OrderStateTransition)).content.decode()

    assert OrderStateTransition.objects.exists()
    assert 'name="action"' not in content
    assert "action-checkbox" not in content
    assert "addlink" not in re.search(r'<div id="content-main">.*', content, re.DOTALL).group()


# Deleting rows


@pytest.mark.parametrize("superuser", [True, False])
@pytest.mark.parametrize("way", ["page", "action"])
def test_who_may_delete_a_row_deletes_its_history_with_it(client, admin_user, superuser, way):
    if superuser:
        client.force_login(admin_user)
    else:
        staff(client, "view_order", "delete_order")
    row, other = order(), order()
    for moved in (row, other):
        moved.states.transition_to("PAID")
    url = page(Order, "delete", row.pk) if way == "page" else page(Order)
    action = {} if way == "page" else {"action": "delete_selected", "_selected_action": [str(row.pk)]}

    asked = client.get(url) if way == "page" else client.post(url, action)
    done = client.post(url, {**action, "post": "yes"})

    assert "PENDING → PAID" in text_of(asked)
    assert done.status_code == 302
    assert list(Order.objects.all()) == [other]
    assert [kept.instance_id for kept in OrderStateTransition.objects.all()] == [other.pk]


@pytest.mark.parametrize("way", ["page", "action"])
def test_who_may_not_delete_a_row_deletes_nothing(client, way):
    staff(client, "view_order", "change_order", "view_orderstatetransition")
    row = order()
    row.states.transition_to("PAID")
    url = page(Order, "delete", row.pk) if way == "page" else page(Order)
    action = {"action": "delete_selected", "_selected_action": [str(row.pk)], "post": "yes"}

    client.post(url, action)

    assert Order.objects.exists()
    assert OrderStateTransition.objects.exists()


def test_history_of_a_parent_table_goes_with_the_child(client):
    car = Car.objects.create()
    car.states.transition_to("MOVING")
    car.fuel.transition_to("EMPTY")
    staff(client, "view_car", "delete_car")

    assert client.post(page(Car, "delete", car.pk), {"post": "yes"}).status_code == 302
    assert not Vehicle.objects.exists()


def test_history_that_protects_its_row_is_named_and_stays(admin_client):
    row = Protected.objects.create()
    row.states.transition_to("DONE")

    response = admin_client.post(page(Protected, "delete", row.pk), {"post": "yes"})

    assert "NEW → DONE" in text_of(response)
    assert Protected.objects.exists()


def test_history_kept_after_its_row_is_listed_and_opens(admin_client):
    row = Kept.objects.create()
    made = row.states.transition_to("DONE")
    gone, audit = row.pk, Kept.states.transition_model

    assert admin_client.post(page(Kept, "delete", gone), {"post": "yes"}).status_code == 302
    assert f"Kept {gone}" in text_of(admin_client.get(page(audit)))
    assert sequences(admin_client.get(page(audit), {"q": gone})) == [1]
    opened = admin_client.get(page(audit, "change", made.pk))
    assert f"Kept {gone} (deleted)" in text_of(opened)


# Machines and databases


def test_each_machine_of_a_model_has_its_own_pages(admin_client):
    invoice = Invoice.objects.create()
    invoice.states.transition_to("SENT")
    invoice.payment.transition_to("PAID")

    assert "Draft → Sent" in words_of(admin_client.get(page(Invoice.states.transition_model)))
    assert "Due → Paid" in words_of(admin_client.get(page(Invoice.payment.transition_model)))


class ShopElsewhere:
    def db_for_read(self, model, **hints):
        return "other" if model._meta.app_label == "shop" else None

    db_for_write = db_for_read


@pytest.mark.django_db(databases=["default", "other"])
def test_records_in_another_database_are_shown_and_deleted_there(admin_client, settings):
    settings.DATABASE_ROUTERS = [ShopElsewhere()]
    row = order()
    made = row.states.transition_to("PAID")
    assert made._state.db == "other"

    with CaptureQueriesContext(connections["default"]) as captured:
        assert sequences(admin_client.get(page(OrderStateTransition), {"q": row.pk})) == [1]
        opened = admin_client.get(page(OrderStateTransition, "change", made.pk))
    assert f"Order {row.pk} of Ada" in text_of(opened)
    assert not [query["sql"] for query in captured if "shop_" in query["sql"]]

    assert admin_client.post(page(Order, "delete", row.pk), {"post": "yes"}).status_code == 302
    assert not OrderStateTransition.objects.exists()


# At scale


@only_postgresql
def test_lists_of_a_large_table_are_read_from_an_index(admin_client):
    rows = Order.objects.bulk_create(Order(customer="Ada", total=1) for _ in range(200))
    OrderStateTransition.objects.bulk_create(
        (
            record(number, row, id=uuid7_floor(1_700_000_000 + number * 500_000 + row.pk))
            for number in range(1, 101)
            for row in rows
        ),
        batch_size=5_000,
    )
    with connection.cursor() as cursor:
        cursor.execute("ANALYZE shop_orderstatetransition")
    older = str(uuid7_floor(1_730_000_000))

    newest_first = "Index Scan Backward using shop_orderstatetransition_pkey"
    assert newest_first in plan_of(admin_client)
    assert newest_first in plan_of(admin_client, p=50)
    assert newest_first in plan_of(admin_client, to_status__exact="PAID")
    assert re.search(rf"{newest_first}.*Index Cond: \(id < ", plan_of(admin_client, id__lt=older), re.DOTALL)
    assert re.search(r"_pkey.*Index Cond: \(id >= ", plan_of(admin_client, when="today"), re.DOTALL)
    assert re.search(
        r"instance_id_sequence\w+_uniq.*Index Cond: \(instance_id = ", plan_of(admin_client, q=rows[0].pk), re.DOTALL
    )


def plan_of(client, **params):
    """Return how PostgreSQL reads the records of a list."""
    *_, sql = queries(client, page(OrderStateTransition), params)
    with connection.cursor() as cursor:
        cursor.execute(f"EXPLAIN {sql}")
        plan = "\n".join(line for (line,) in cursor.fetchall())
    assert "Seq Scan" not in plan
    return plan


# The reference page's plain ModelAdmin


@pytest.fixture
def task_record():
    task = TaskExecution.objects.create()
    task.mark_running(metadata={"worker": 7})
    return TaskExecution.states.transition_model.objects.get()


def test_reference_list_and_filters_need_no_distinct(admin_client, task_record):
    url = page(type(task_record))

    for params in ({}, {"to_status__exact": "RUNNING"}, {"from_status__exact": "READY"}):
        asked = queries(admin_client, url, params)
        assert not [sql for sql in asked if "DISTINCT" in sql.upper()]
    response = admin_client.get(url)
    assert "Running" in text_of(response)
    assert "?to_status__exact=SUCCESSFUL" in response.content.decode()
    assert sequences(admin_client.get(url, {"to_status__exact": "FAILED"})) == []


def test_reference_record_opens_and_saving_it_changes_nothing(admin_client, task_record):
    url = page(type(task_record), "change", task_record.pk)
    before = type(task_record).objects.values().get()

    assert "Running" in text_of(admin_client.get(url))
    response = admin_client.post(url, {"_save": "Save"})

    assert response.status_code == 302
    assert type(task_record).objects.values().get() == before


def test_reference_add_form_refuses_with_an_error_in_the_form(admin_client, task_record):
    url = page(type(task_record), "add")

    assert admin_client.get(url).status_code == 200
    response = admin_client.post(url, {"_save": "Save"})

    assert response.status_code == 200
    assert "cannot be added by hand" in text_of(response)
    assert type(task_record).objects.count() == 1
