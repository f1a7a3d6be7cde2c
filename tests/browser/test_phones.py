"""Small screens: graphs that can be read there, tables that scroll in their own box, and lists that begin with rows."""

import datetime as dt
from dataclasses import replace
from itertools import pairwise

import pytest
from django.utils import timezone

from shop.forms import ReturnForm
from shop.models import Order
from statemachine_fields import State, Transition
from statemachine_fields.drawing.tones import tones_of
from tests.browser.chromium import expect
from tests.browser.orders import make_history
from tests.browser.pages import address, button, row_page

PHONE = {"width": 390, "height": 800}

#: How large the names of states are on the screen, in pixels.
SIZE_OF_TEXT = """svg => 13 * svg.getBoundingClientRect().width / svg.viewBox.baseVal.width"""


@pytest.fixture
def phone(page):
    page.set_viewport_size(PHONE)
    return page


@pytest.fixture
def moved(transactional_db):
    """An order that has gone all the way, so that the page of the machine has something to show."""
    order = Order.objects.create(customer="Ada", total=25)
    for state in ("PAID", "PACKED", "SHIPPED", "DELIVERED", "RETURNED"):
        order.states.transition_to(state)
    return order


@pytest.fixture
def use_graph(monkeypatch, order_admin):
    """A function that gives orders other states for a test."""

    def use_graph(names, edges):
        graph = type(Order.states._meta.graph)({name: State(name, name) for name in names}, names[0], edges, {})
        monkeypatch.setattr(Order.states._meta, "graph", graph)
        monkeypatch.setattr(order_admin, "_tones", {"states": tones_of(graph, {})}, raising=False)

    return use_graph


def graph(page):
    return page.locator(".smf-drawing svg:visible")


def open_list(page, row):
    page.goto(address(Order, "changelist"))
    fold = page.locator(".smf-overview")
    if fold.get_attribute("open") is None:
        fold.locator("summary").click()


def open_row(page, row):
    page.goto(row_page(row))


def open_machine(page, row):
    page.goto(address(Order, "machine", "states"))


@pytest.mark.parametrize("open_page", [open_list, open_row, open_machine])
def test_graph_stands_upright_on_a_phone_and_can_be_read(phone, moved, open_page):
    open_page(phone, moved)

    drawing = graph(phone).first
    box = drawing.bounding_box()
    assert box["height"] > box["width"]
    assert box["x"] >= 0
    assert box["x"] + box["width"] <= PHONE["width"]
    assert drawing.evaluate(SIZE_OF_TEXT) == pytest.approx(13)


@pytest.mark.parametrize("open_page", [open_list, open_row, open_machine])
def test_graph_that_stands_upright_anywhere_can_be_read_on_a_phone(phone, order, use_graph, open_page):
    names = [f"STATE{number}" for number in range(40)]
    ways = {number: {number + 1, number + 9, number * 3 % 40} - {number} for number in range(39)}
    use_graph(names, {names[at]: tuple(names[to] for to in sorted(its) if to < 40) for at, its in ways.items()})
    open_page(phone, order)

    assert graph(phone).first.evaluate(SIZE_OF_TEXT) == pytest.approx(13)
    assert phone.evaluate("document.documentElement.scrollWidth") == PHONE["width"]


@pytest.mark.parametrize("language", ["en", "he"])
def test_the_state_of_a_row_is_in_sight_of_a_graph_wider_than_the_phone(phone, order, use_graph, settings, language):
    settings.LANGUAGE_CODE = language
    ways = ["PENDING", *(f"WAY NUMBER {number}" for number in range(12)), "SHIPPED"]
    use_graph(["START", *ways, "END"], {"START": tuple(ways), **dict.fromkeys(ways, ("END",))})
    for status in ("SHIPPED", "PENDING"):
        row = Order.objects.create(customer="Ada", total=25, status=status)
        open_row(phone, row)

        box = phone.locator(".smf-drawing .smf-current:visible").bounding_box()

        assert graph(phone).bounding_box()["width"] > 2 * PHONE["width"]
        assert box["x"] >= 0
        assert box["x"] + box["width"] <= PHONE["width"]


def test_a_word_that_is_wider_than_the_phone_is_broken(phone, order, use_graph, monkeypatch):
    """On the button, in the title, and on the button that answers, wherever the theme's own frame allows it."""
    word = "Donaudampfschifffahrtsgesellschaftskapitänsmützenabzeichen"
    use_graph(["PENDING", word], {"PENDING": (word,)})
    asking = {("PENDING", word): Transition(word, form=ReturnForm)}
    monkeypatch.setattr(Order.states._meta, "graph", replace(Order.states._meta.graph, details=asking))

    open_row(phone, order)
    assert phone.evaluate("document.documentElement.scrollWidth") == PHONE["width"]
    button(phone, f"Move to {word}").click()

    expect(phone.locator(".smf-ask")).to_be_visible()
    assert phone.evaluate("document.documentElement.scrollWidth") == PHONE["width"]
    answer = button(phone, f"Move to {word}")
    assert answer.evaluate("element => element.scrollWidth <= element.clientWidth + 1")


@pytest.mark.parametrize("open_page", [open_list, open_row, open_machine])
def test_graph_lies_on_a_large_screen(page, moved, open_page):
    open_page(page, moved)

    expect(graph(page).first).to_be_visible()
    box = graph(page).first.bounding_box()
    assert box["width"] > box["height"]
    assert page.locator(".smf-phone svg:visible").count() == 0


def test_graph_of_many_states_leaves_room_for_the_list(page, order, use_graph):
    names = [f"STATE{number}" for number in range(9)]
    use_graph(names, {source: (target,) for source, target in pairwise(names)})

    page.goto(address(Order, "changelist"))

    assert page.locator(".smf-overview").bounding_box()["height"] < 200
    assert graph(page).evaluate(SIZE_OF_TEXT) > 9
    assert page.locator("#result_list").bounding_box()["y"] < 500


def test_graph_of_many_branches_leaves_room_for_the_list(page, order, use_graph):
    ends = [f"END{number}" for number in range(12)]
    use_graph(["START", *ends], {"START": tuple(ends)})

    page.goto(address(Order, "changelist"))

    assert page.locator(".smf-overview").bounding_box()["height"] < 350


def test_list_begins_with_its_rows_on_a_phone_until_somebody_says_otherwise(phone, moved):
    phone.goto(address(Order, "changelist"))
    fold = phone.locator(".smf-overview")
    expect(fold).not_to_have_attribute("open", "")

    fold.locator("summary").click()
    expect(fold).to_have_attribute("open", "")
    phone.reload()

    expect(fold).to_have_attribute("open", "")


def test_tables_scroll_in_their_own_box_on_a_phone(phone, moved):
    moved.states.history.update(transitioned_at=timezone.now() - dt.timedelta(minutes=3))
    make_history(Order.objects.create(customer="Ada", total=5), 3, next_at=None, failures=3, error="GLS is shut. " * 9)
    open_machine(phone, moved)

    for box in phone.locator(".smf-scroll, .smf-beside > *").all():
        place = box.bounding_box()
        assert place["x"] + place["width"] <= PHONE["width"]
        assert box.evaluate("element => getComputedStyle(element).overflowX") == "auto"
    assert phone.evaluate("document.documentElement.scrollWidth") == PHONE["width"]
