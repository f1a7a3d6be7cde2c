"""Our parts of a page within the site's own frame: where they stand, and that the frame is the site's."""

import pytest
from django import forms
from django.contrib.admin.widgets import AdminDateWidget

from shop.forms import ReturnForm
from shop.models import Order
from tests.browser.chromium import expect
from tests.browser.orders import TAKE_BACK
from tests.browser.pages import address, button, row_page

WIDTHS = (1280, 900, 390)

#: What a reader sees of the breadcrumbs: how they look, and what is written there with what is drawn between.
CRUMBS = """() => {
    const crumbs = document.querySelector(".breadcrumbs");
    const look = (element, names) => names.map(name => getComputedStyle(element)[name]);
    return [
        crumbs.tagName,
        crumbs.getBoundingClientRect().height,
        look(crumbs, ["backgroundColor", "color", "paddingLeft", "paddingTop", "fontSize", "listStyleType"]),
        look(crumbs.querySelector("a"), ["color", "fontSize", "display"]),
    ];
}"""


@pytest.fixture
def shipped(transactional_db):
    return Order.objects.create(customer="Ada", total=25, status="SHIPPED")


def box(page, selector):
    return page.locator(selector).first.bounding_box()


def bottom(found):
    return found["y"] + found["height"]


@pytest.mark.parametrize("kind", ["list", "row"])
@pytest.mark.parametrize("width", WIDTHS)
def test_machine_stands_between_the_title_and_the_content_in_full_width(page, shipped, width, kind):
    page.set_viewport_size({"width": width, "height": 800})
    page.goto(address(Order, "changelist") if kind == "list" else row_page(shipped))

    ours, content, title = box(page, ".smf-panel, .smf-overview"), box(page, "#content-main"), box(page, "#content h1")

    assert ours["x"] == content["x"]
    assert ours["width"] == content["width"]
    assert bottom(title) <= ours["y"]
    assert bottom(ours) <= content["y"]
    assert title["width"] > 100


@pytest.mark.parametrize("kind", ["list", "row"])
@pytest.mark.parametrize("width", WIDTHS)
def test_tools_of_the_page_cover_nothing(page, shipped, width, kind):
    page.set_viewport_size({"width": width, "height": 800})
    page.goto(address(Order, "changelist") if kind == "list" else row_page(shipped))

    tools, ours, content = (
        box(page, ".object-tools a"),
        box(page, ".smf-panel, .smf-overview"),
        box(page, "#content-main"),
    )

    assert bottom(tools) <= ours["y"] or tools["y"] >= bottom(ours)
    if width > 767:  # on a phone they have a line of their own
        right_of_tools, right = (found["x"] + found["width"] for found in (tools, content))
        assert bottom(tools) <= ours["y"]
        assert right - 10 <= right_of_tools <= right


@pytest.mark.parametrize("name", ["story", "machine", "move"])
def test_way_back_looks_as_on_the_pages_of_the_site(page, shipped, name):
    page.goto(row_page(shipped))
    usual = page.evaluate(CRUMBS)

    match name:
        case "story":
            page.goto(address(shipped, "story", shipped.pk, "states"))
        case "machine":
            page.goto(address(Order, "machine", "states"))
        case "move":
            button(page, TAKE_BACK).click()
            expect(page.locator(".smf-ask")).to_be_visible()

    assert page.evaluate(CRUMBS) == usual
    steps = page.locator(".breadcrumbs a")
    expected = ["Home", "Shop", "Orders", str(shipped)]
    expect(steps).to_have_text(expected[:3] if name == "machine" else expected)
    expect(page.locator(".breadcrumbs")).to_contain_text(page.locator("#content h1").inner_text())


def test_widgets_of_the_admin_work_in_the_form_of_a_move(page, shipped, monkeypatch):
    class Dated(ReturnForm):
        arrived = forms.DateField(widget=AdminDateWidget)

    monkeypatch.setattr("shop.forms.ReturnForm", Dated)
    page.goto(row_page(shipped))
    button(page, TAKE_BACK).click()

    page.locator(".datetimeshortcuts").get_by_text("Today", exact=True).click()

    expect(page.get_by_label("Arrived")).not_to_have_value("")
