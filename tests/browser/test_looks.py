"""What holds on every page: it can be read, in light and dark; it fits; and it can be used by ear and by keyboard."""

import re
from itertools import pairwise

import pytest

from shop.models import Order
from tests.browser.chromium import expect
from tests.browser.looks import CONTRASTS, READABLE, faint_texts, sideways_scrolls
from tests.browser.orders import TAKE_BACK, make_history
from tests.browser.pages import address, badge, button, choose, row_page


@pytest.fixture
def parked(transactional_db):
    """An order of each state, and one that was parked, with more moves than its page shows."""
    for state in Order.states._meta.graph.states:
        Order.objects.create(customer="Ada", total=25, status=state)
    order = Order.objects.create(customer="Ada", total=5)
    make_history(order, 60, status="SHIPPED", next_at=None, failures=3, error="GLS takes no bookings. " * 20)
    return order


# The pages


def open_list(page, row):
    page.goto(address(Order, "changelist"))


def open_bulk(page, row):
    open_list(page, row)
    page.get_by_label("Select all objects on this page for an action").check()
    choose(page, "Move to Returned")
    expect(page.locator(".smf-preview")).to_be_visible()


def open_row(page, row):
    page.goto(row_page(row))


def open_move(page, row):
    page.goto(row_page(Order.objects.get(status="DELIVERED")))
    button(page, TAKE_BACK).click()
    expect(page.locator(".smf-ask")).to_be_visible()


def open_story(page, row):
    page.goto(address(row, "story", row.pk, "states"))


def open_machine(page, row):
    page.goto(address(Order, "machine", "states"))


# What is wrong with one


def nameless_parts(page):
    nameless = re.compile(r"- (button|link|checkbox|combobox|textbox|spinbutton|radio|heading|img)(?! \")")
    for line in page.locator("#content").aria_snapshot().splitlines():
        if nameless.match(line.strip()):
            yield f"nobody can hear what this is: {line.strip()}"


def skipped_headings(page):
    found = page.locator("#content :is(h1, h2, h3, h4, h5, h6)")
    levels = [int(name[1]) for name in found.evaluate_all("all => all.map(one => one.tagName)")]
    if levels[:1] != [1] or any(after - before > 1 for before, after in pairwise(levels)):
        yield f"headings have the levels {levels}"


@pytest.mark.parametrize("open_page", [open_list, open_bulk, open_row, open_move, open_story, open_machine])
def test_page_can_be_read_fits_and_can_be_heard(page, parked, open_page):
    open_page(page, parked)

    checks = (faint_texts, nameless_parts, skipped_headings, sideways_scrolls)
    assert not [problem for check in checks for problem in check(page)]


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_theme_that_somebody_chose_wins_over_that_of_the_browser(page, parked, theme):
    page.emulate_media(color_scheme="dark" if theme == "light" else "light")
    open_row(page, parked)
    switch = page.get_by_role("button", name=re.compile("theme"))
    while page.locator("html").get_attribute("data-theme") != theme:
        switch.click()

    green = badge(page).evaluate("element => getComputedStyle(element).backgroundColor.match(/[0-9]+/g)[1]")

    assert (int(green) > 128) == (theme == "light")
    assert min(ratio for _text, ratio in page.evaluate(CONTRASTS)) >= READABLE


def test_folds_open_and_close_with_the_keyboard(page, parked):
    open_row(page, parked)
    for fold in page.locator(".smf-panel details").all():
        was_open = fold.get_attribute("open") is not None
        fold.locator("summary").focus()
        page.keyboard.press("Space")
        expect(fold).to_have_js_property("open", not was_open)
