"""The clock of a row: run it now, take it from its worker, put it back on the clock."""

from shop.models import Order
from tests.browser.chromium import expect
from tests.browser.pages import button, message, row_page
from tests.worker.rows import columns_of, in_seconds, set_clock

LEASE = {"lease_owner": "host:1", "lease_token": 7, "status": "PACKED"}


def clock(page):
    return page.locator(".smf-clock")


def test_run_now_makes_the_row_due(page, order):
    set_clock(order, status="PAID", next_at=in_seconds(3700))
    page.goto(row_page(order))
    expect(clock(page).get_by_role("heading")).to_have_text(
        "Clock: Runs in 1\N{NO-BREAK SPACE}hour, 1\N{NO-BREAK SPACE}minute"
    )

    button(page, "Run now").click()

    expect(message(page)).to_have_text(f"“{order}” is due now.")
    expect(clock(page).get_by_role("heading")).to_have_text("Clock: Due now")
    assert list(Order.states.due()) == [order]


def test_parked_row_shows_its_error_and_is_resumed(page, order):
    set_clock(order, status="PACKED", next_at=None, failures=3, error="GLS takes no bookings")
    page.goto(row_page(order))
    expect(clock(page)).to_contain_text("Parked: GLS takes no bookings")
    expect(clock(page).get_by_text("GLS takes no bookings", exact=True)).to_be_visible()

    button(page, "Resume").click()

    expect(message(page)).to_have_text(f"“{order}” was resumed, and is due now.")
    expect(button(page, "Resume")).to_have_count(0)
    assert list(Order.states.due()) == [order]
    assert columns_of(order).failures == 0


def test_row_is_taken_from_its_worker(page, order):
    set_clock(order, next_at=in_seconds(-1), lease_expires_at=in_seconds(600), **LEASE)
    page.goto(row_page(order))
    expect(clock(page)).to_contain_text("Clock: Held by host:1")

    button(page, "Release").click()

    expect(message(page)).to_have_text(f"“{order}” was taken away from its worker, and is due now.")
    assert (columns_of(order).lease_expires_at, columns_of(order).lease_token) == (None, 8)


def test_release_comes_too_late_for_another_worker(page, order):
    set_clock(order, next_at=in_seconds(-1), lease_expires_at=in_seconds(600), **LEASE)
    page.goto(row_page(order))
    set_clock(order, lease_owner="host:2", lease_token=9)

    button(page, "Release").click()

    expect(message(page)).to_have_text(f"“{order}” was left alone: that worker does not run it any more.")
    assert columns_of(order).lease_owner == "host:2"


def test_resume_comes_too_late_for_a_row_that_runs_again(page, order):
    set_clock(order, status="PACKED", next_at=None, failures=3, error="GLS takes no bookings")
    page.goto(row_page(order))
    order.refresh_from_db()
    order.states.resume()

    button(page, "Resume").click()

    expect(message(page)).to_have_text(f"“{order}” was left alone: it is not parked any more.")


def test_run_now_of_a_row_that_a_worker_has_taken_meanwhile_is_refused(page, order):
    set_clock(order, status="PAID", next_at=in_seconds(3600))
    page.goto(row_page(order))
    set_clock(order, lease_expires_at=in_seconds(600), **LEASE)

    button(page, "Run now").click()

    expect(message(page)).to_contain_text("was left alone: A worker is running it.")
    assert columns_of(order).lease_token == 7


def test_row_with_nothing_to_run_has_no_button_for_it(page, order):
    set_clock(order, status="DELIVERED", next_at=None)

    page.goto(row_page(order))

    expect(clock(page)).to_contain_text("Nothing is due")
    expect(clock(page).get_by_role("button")).to_have_count(0)


def test_row_that_waits_for_its_deletion_says_so_and_has_no_button(page, order):
    set_clock(order, status="CANCELLED", next_at=in_seconds(30 * 24 * 3600))

    page.goto(row_page(order))

    expect(clock(page).get_by_role("heading")).to_contain_text("Clock: Deleted on ")
    expect(clock(page).get_by_role("button")).to_have_count(0)
