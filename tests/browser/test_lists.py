"""The list of rows: badges, the graph above it, and the action that moves many."""

import pytest
from django.contrib.admin.models import LogEntry

from shop.models import Order
from tests.browser.chromium import expect
from tests.browser.pages import address, button, choose, message, tab_to

LIST = address(Order, "changelist")


def make(*states, total=25):
    return [Order.objects.create(customer="Ada", total=total, status=state) for state in states]


def rows(page):
    return page.locator("#result_list tbody tr")


@pytest.fixture
def orders(transactional_db):
    """Three that can be paid, and three that cannot."""
    return make("PENDING", "PENDING", "PENDING", "PACKED", "PACKED", "DELIVERED")


def statuses():
    return list(Order.objects.order_by("pk").values_list("status", flat=True))


def test_list_shows_badges_and_nothing_to_type(page, orders):
    page.goto(LIST)

    expect(page.locator("#result_list .smf-badge")).to_have_text(
        ["Delivered", "Packed", "Packed", "Pending", "Pending", "Pending"]
    )
    expect(page.locator("#result_list").get_by_role("combobox")).to_have_count(0)


def test_graph_leads_to_the_rows_of_a_state_without_a_mouse(page, orders):
    page.goto(LIST)
    pending = page.get_by_role("link", name="Pending: 3")

    tab_to(page, pending)
    assert pending.evaluate("element => getComputedStyle(element).outlineStyle") != "none"
    page.keyboard.press("Enter")

    expect(rows(page)).to_have_count(3)
    expect(page.locator("#changelist-filter .selected")).to_contain_text("Pending (3)")
    expect(page.locator(".smf-graph .smf-current:visible")).to_have_attribute("data-state", "PENDING")


def test_row_leads_back_to_the_list_as_it_was(page, orders):
    page.goto(f"{LIST}?status__exact=PENDING")
    rows(page).first.get_by_role("link").first.click()
    button(page, "Move to Paid").click()
    expect(message(page)).to_contain_text("was moved")

    button(page, "Save").click()

    expect(rows(page)).to_have_count(2)


def test_many_rows_are_moved_after_a_look_at_which_can(page, orders, user):
    page.goto(LIST)
    page.get_by_label("Select all objects on this page for an action").check()
    choose(page, "Move to Paid")

    expect(page.locator(".smf-can")).to_have_text("3 of 6 selected rows can move to Paid")
    expect(page.locator(".smf-preview tbody tr")).to_have_text(
        ["2There is no move from Packed to Paid.", "1There is no move from Delivered to Paid."]
    )
    page.get_by_label("Note").fill("The bank was slow")
    button(page, "Yes, move 3 rows").click()

    expect(message(page)).to_have_text(
        [
            "3 rows were moved to Paid.",
            "3 rows were not moved: 2 × There is no move from Packed to Paid. 1 × There is no move from Delivered to Paid.",
        ]
    )
    assert statuses() == ["PAID", "PAID", "PAID", "PACKED", "PACKED", "DELIVERED"]
    assert LogEntry.objects.filter(user=user).count() == 3
    metadata = orders[0].states.history.get().metadata
    assert (metadata["actor"]["text"], metadata["note"]) == ("grace", "The bank was slow")


def test_no_to_many_moves_nothing(page, orders):
    page.goto(f"{LIST}?status__exact=PENDING")
    rows(page).first.get_by_role("checkbox").check()
    choose(page, "Move to Paid")

    page.get_by_role("link", name="No, take me back").click()

    expect(rows(page)).to_have_count(3)
    assert statuses().count("PENDING") == 3


def test_form_is_asked_once_for_many_and_a_guard_of_each(page):
    make("SHIPPED", "SHIPPED")
    make("SHIPPED", total=5)
    page.goto(LIST)
    page.get_by_label("Select all objects on this page for an action").check()
    choose(page, "Move to Returned")

    expect(page.locator(".smf-preview tbody tr")).to_have_text(["1What costs less than 20 is not taken back."])
    page.get_by_label("Reason").select_option("unwanted")
    button(page, "Yes, move 2 rows").click()

    expect(message(page).first).to_have_text("2 rows were moved to Returned.")
    assert [order.states.history.get().metadata["reason"] for order in Order.objects.filter(status="RETURNED")] == [
        "unwanted",
        "unwanted",
    ]


def test_rows_of_all_pages_are_moved(page, order_admin, monkeypatch):
    monkeypatch.setattr(order_admin, "list_per_page", 3)
    make(*["PENDING"] * 8)
    page.goto(LIST)
    page.get_by_label("Select all objects on this page for an action").check()
    page.get_by_text("Select all 8 orders").click()
    choose(page, "Move to Paid")

    expect(page.locator(".smf-can")).to_have_text("8 of 8 selected rows can move to Paid")
    button(page, "Yes, move 8 rows").click()

    expect(message(page)).to_have_text("8 rows were moved to Paid.")
    assert statuses() == ["PAID"] * 8


def test_row_that_changed_since_the_list_was_seen_stays(page, orders):
    page.goto(LIST)
    page.get_by_label("Select all objects on this page for an action").check()
    choose(page, "Move to Cancelled")
    expect(page.locator(".smf-can")).to_have_text("3 of 6 selected rows can move to Cancelled")
    orders[0].states.transition_to("PAID")

    button(page, "Yes, move 3 rows").click()

    expect(message(page).first).to_have_text("2 rows were moved to Cancelled.")
    expect(message(page).last).to_contain_text("1 × Changed or deleted since you saw the list.")
    assert statuses() == ["PAID", "CANCELLED", "CANCELLED", "PACKED", "PACKED", "DELIVERED"]
