"""The list of rows with machines: badges, the filter with its counts, and the graph above it."""

from __future__ import annotations

import html
import re

import pytest
from django.contrib import admin
from django.contrib.admin.utils import label_for_field
from django.db import connection
from django.test.utils import CaptureQueriesContext, isolate_apps

from lab.admin import DossierAdmin
from lab.models import Car, Dossier, Invoice
from shop.models import Order
from statemachine_fields import State, StateMachine
from statemachine_fields.admin import StateMachineAdminMixin
from statemachine_fields.db.counting import count_each
from tests.admin.browsing import MOVER, choices, dossiers, page, staff
from tests.declared import lab_model

pytestmark = pytest.mark.django_db


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
        billing = StateMachine(**timed, transitions={"NEW": ["OLD"]}, field="billing_status")
        parcel = lab_model(name="Parcel", states=StateMachine(**timed, transitions={"NEW": ["OLD"]}), billing=billing)
    own = type("Own", (StateMachineAdminMixin, admin.ModelAdmin), {})(parcel, admin.AdminSite())
    assert names_of_columns(own, parcel.states._meta.names.next_at, parcel.billing._meta.names.next_at) == [
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
