"""The admin beside other packages, and in other themes: what people do there works, and looks as if it belonged there.

SMF_ADMIN says what is installed: `packages`, or a theme, `unfold` or `jazzmin`, with the same packages. Without it, these
tests are skipped; `nox -s admin` runs all of them.
"""

import re

import pytest
from django.apps import apps
from django.contrib.admin.models import LogEntry

from shop.models import Order
from tests.browser.chromium import expect
from tests.browser.looks import faint_texts, sideways_scrolls
from tests.browser.orders import TAKE_BACK
from tests.browser.pages import BACKGROUND, address, badge, button, row_page
from tests.settings import SMF_ADMIN
from tests.worker.rows import set_clock

only_packages = pytest.mark.skipif(SMF_ADMIN != "packages", reason="SMF_ADMIN is not packages; see `nox -s admin`")
only_themes = pytest.mark.skipif(
    SMF_ADMIN not in ("unfold", "jazzmin"), reason="SMF_ADMIN names no theme; see `nox -s admin`"
)


def move_all(page, action):
    """Tick all rows and choose an action, in whichever way a theme dresses up Django's own form."""
    for checkbox in page.locator("input[name=_selected_action]").all():
        checkbox.check()
    page.locator("select[name=action]").select_option(label=action, force=True)
    page.locator("#changelist-form button[name=index]").first.click()


def panel(page):
    return page.locator(".smf-panel")


# Packages, each with an admin class of its own


@only_packages
@pytest.mark.parametrize("name", ["Exported", "Versioned", "Tracked"])
def test_rows_are_seen_and_moved_beside_another_package(page, user, name):
    model = apps.get_model("neighbours", name)
    rows = [model.objects.create(title=f"Row {number}") for number in range(3)]

    page.goto(address(model, "changelist"))
    expect(page.get_by_role("link", name="Packed: 3")).to_be_visible()
    move_all(page, "Move to Sent")
    button(page, "Yes, move 3 rows").click()
    expect(page.locator("#result_list .smf-badge")).to_have_text(["Sent"] * 3)

    page.goto(row_page(rows[0]))
    button(page, "Move to Arrived").click()
    expect(badge(page)).to_have_text("Arrived")
    page.get_by_label("Title").fill("Renamed")
    button(page, "Save and continue editing").click()
    expect(page.get_by_label("Title")).to_have_value("Renamed")
    expect(badge(page)).to_have_text("Arrived")

    page.goto(row_page(rows[1]))
    button(page, "Give up").click()
    button(page, "Yes, I’m sure").click()
    expect(badge(page)).to_have_text("Lost")

    page.goto(address(rows[0], "history", rows[0].pk))
    expect(page.locator("#content")).to_contain_text("Renamed")
    page.goto(address(model, "machine", "states"))
    expect(page.locator(".smf-figures").first).to_contain_text("Arrived")
    assert sorted(model.objects.values_list("title", "status")) == [
        ("Renamed", "ARRIVED"),
        ("Row 1", "LOST"),
        ("Row 2", "SENT"),
    ]
    assert [row.states.history.count() for row in rows] == [2, 2, 1]
    assert LogEntry.objects.filter(user=user).count() >= 5


@only_packages
def test_what_another_package_adds_to_the_list_is_there(page):
    for name, tool in (("Exported", "Import"), ("Exported", "Export"), ("Versioned", "Recover deleted")):
        page.goto(address(apps.get_model("neighbours", name), "changelist"))
        expect(page.locator(".object-tools").get_by_text(re.compile(rf"^\s*{tool}"))).to_be_visible()
        expect(page.locator(".smf-overview svg:visible")).to_have_count(1)


@only_packages
def test_pages_of_old_versions_have_no_buttons_to_move_the_row(page):
    import reversion

    model = apps.get_model("neighbours", "Versioned")
    with reversion.create_revision():
        row = model.objects.create(title="First")
    version = reversion.models.Version.objects.get_for_object(row).get()

    page.goto(address(model, "revision", row.pk, version.pk))

    expect(page.get_by_label("Title")).to_have_value("First")
    expect(panel(page)).to_have_count(0)


# Themes


@pytest.fixture
def orders(transactional_db):
    orders = [Order.objects.create(customer="Ada", total=total, status="SHIPPED") for total in (25, 30, 5)]
    set_clock(orders[2], next_at=None, failures=3, error="GLS takes no bookings.")
    return orders


def go_dark(page):
    """Choose the dark colours of a theme that does not ask the browser for them."""
    page.evaluate("localStorage.setItem('jazzmin-theme-mode', 'dark')")
    page.reload()


def open_bulk(page, orders):
    page.goto(address(Order, "changelist"))
    move_all(page, "Move to Returned")
    expect(page.locator(".smf-preview")).to_be_visible()


def open_move(page, orders):
    page.goto(row_page(orders[0]))
    button(page, TAKE_BACK).click()
    expect(page.locator(".smf-ask")).to_be_visible()


PAGES = {
    "list": lambda page, orders: page.goto(address(Order, "changelist")),
    "bulk": open_bulk,
    "row": lambda page, orders: page.goto(row_page(orders[2])),
    "move": open_move,
    "story": lambda page, orders: page.goto(address(orders[2], "story", orders[2].pk, "states")),
    "machine": lambda page, orders: page.goto(address(Order, "machine", "states")),
}


@only_themes
def test_rows_are_moved_in_another_theme(page, orders):
    page.goto(address(Order, "changelist"))
    expect(page.get_by_role("link", name="Shipped: 3")).to_be_visible()
    move_all(page, "Move to Returned")
    button(page, "Yes, move 2 rows").click()
    expect(page.locator("#result_list .smf-badge")).to_have_text(["Shipped", "Returned", "Returned"])

    page.goto(row_page(orders[2]))
    expect(page.locator("form .smf-panel, form form")).to_have_count(0)
    expect(button(page, TAKE_BACK)).to_be_disabled()
    page.get_by_label("Note").fill("At the door")
    button(page, "Move to Delivered").click()
    expect(badge(page)).to_have_text("Delivered")
    expect(page.locator(".smf-story")).to_contain_text("At the door")
    assert list(Order.objects.order_by("pk").values_list("status", flat=True)) == ["RETURNED", "RETURNED", "DELIVERED"]


@only_themes
def test_what_a_move_asks_is_answered_in_another_theme(page, orders):
    open_move(page, orders)
    page.locator("[name=remark]").fill("Blue, not green")
    button(page, TAKE_BACK).click()

    expect(badge(page)).to_have_text("Returned")
    assert orders[0].states.history.get().metadata["remark"] == "Blue, not green"


@only_themes
def test_a_dangerous_button_looks_it_in_another_theme(page, dangerous):
    order = Order.objects.create(customer="Ada", total=25)
    page.goto(row_page(order))
    colors = [button(page, name).evaluate(BACKGROUND) for name in ("Move to Paid", "Cancel")]

    button(page, "Cancel").click()
    colors.append(button(page, "Yes, I’m sure").evaluate(BACKGROUND))

    assert colors[1] == colors[2] != colors[0]
    red, green, blue = map(int, re.findall(r"\d+", colors[1])[:3])
    assert red > 2 * max(green, blue)


@only_themes
@pytest.mark.parametrize("name", PAGES)
def test_page_can_be_read_fits_and_says_what_it_is_in_another_theme(page, orders, name):
    PAGES[name](page, orders)

    problems = [*faint_texts(page)]
    if SMF_ADMIN == "jazzmin" and name not in ("bulk", "move"):  # which cannot be loaded again
        go_dark(page)
        problems += faint_texts(page)
    if name != "list":  # whose table is the theme's own
        problems += sideways_scrolls(page)
    assert not problems
    if name not in ("list", "row"):
        expect(page.locator(".smf-title")).to_be_visible()
    for submit in page.locator(".smf-page .submit-row [type=submit]").all():
        assert submit.evaluate("element => getComputedStyle(element).backgroundColor") != "rgba(0, 0, 0, 0)"


@only_themes
def test_graph_stands_upright_on_a_phone_in_another_theme(page, orders):
    page.set_viewport_size({"width": 390, "height": 800})
    page.goto(row_page(orders[0]))

    box = page.locator(".smf-drawing svg:visible").bounding_box()

    assert box["height"] > box["width"]
