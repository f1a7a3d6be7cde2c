"""What holds on every page: it can be read, in light and dark; it fits; and it can be used by ear and by keyboard."""

import re
from itertools import pairwise

import pytest

from shop.models import Order
from tests.browser.chromium import expect
from tests.browser.orders import TAKE_BACK, make_history
from tests.browser.pages import address, badge, button, choose, row_page

#: The ratio that texts of this size need (WCAG 2.2, 1.4.3).
READABLE = 4.5

#: Ratios of text to what is behind it: of our badges and other texts, and of the names in the graph to their boxes.
CONTRASTS = """async () => {
    await Promise.all(document.getAnimations().map(animation => animation.finished));
    const parse = color => color.match(/[0-9.]+/g).map(Number);
    const luminance = color => {
        const [r, g, b] = parse(color).map(part => part / 255).map(
            part => part <= 0.03928 ? part / 12.92 : ((part + 0.055) / 1.055) ** 2.4
        );
        return 0.2126 * r + 0.7152 * g + 0.0722 * b;
    };
    const ratio = (one, other) => {
        const [dark, bright] = [luminance(one), luminance(other)].sort((a, b) => a - b);
        return (bright + 0.05) / (dark + 0.05);
    };
    const behind = element => {
        const [r, g, b, alpha = 1] = parse(getComputedStyle(element).backgroundColor);
        return alpha > 0 || !element.parentElement ? `rgb(${r}, ${g}, ${b})` : behind(element.parentElement);
    };
    const texts = [...document.querySelectorAll(
        ".smf-badge, .smf-quiet, .smf-why, .smf-preview *, .smf-panel *"
    )].filter(
        element => element.checkVisibility() && !element.closest("svg")
            && [...element.childNodes].some(node => node.nodeType === Node.TEXT_NODE && node.data.trim())
    ).map(element => [
        `${element.tagName} ${element.className} ${element.textContent.trim().slice(0, 40)}`,
        ratio(getComputedStyle(element).color, behind(element))
    ]);
    const names = [...document.querySelectorAll(".smf-graph .smf-state text")].map(text => [
        `graph ${text.textContent}`,
        ratio(getComputedStyle(text).fill, getComputedStyle(text.parentElement.querySelector(".smf-box")).fill)
    ]);
    return [...texts, ...names];
}"""


@pytest.fixture
def parked(transactional_db):
    """An order of each state, and one that was parked, with more moves than its page shows."""
    for state in Order.states.graph.states:
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


def faint_texts(page):
    for scheme in ("light", "dark"):
        page.emulate_media(color_scheme=scheme)
        for text, ratio in page.evaluate(CONTRASTS):
            if ratio < READABLE:
                yield f"cannot be read in {scheme}, at {ratio:.1f}: {text}"


def sideways_scrolls(page):
    for width in (1280, 1024, 390):
        page.set_viewport_size({"width": width, "height": 800})
        excess = page.evaluate("document.documentElement.scrollWidth - document.documentElement.clientWidth")
        if excess > 0:
            yield f"at {width} pixels it is {excess} too wide"


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
