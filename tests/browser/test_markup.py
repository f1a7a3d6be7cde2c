"""Whatever is in labels, names, notes and errors is shown as text, and runs nowhere."""

import pytest
from django.contrib.auth import get_user_model

from shop.models import Order
from statemachine_fields import State, Transition
from tests.browser.chromium import expect
from tests.browser.pages import address, badge, choose, message, row_page
from tests.worker.rows import set_clock

SCRIPT = '</script></title></svg>"\'><img src=x onerror="window.hacked=1;alert(1)"><script>window.hacked=1</script>'


@pytest.fixture
def labels(monkeypatch):
    """Markup in the label of each state, and of each move that has details."""
    graph = Order.states._meta.graph
    states = {value: State(value, f"{value} {SCRIPT}") for value in graph.states}
    details = {move: Transition(move[1], f"Go {SCRIPT}", confirm=f"Sure? {SCRIPT}") for move in graph.details}
    monkeypatch.setattr(Order.states._meta, "graph", type(graph)(states, graph.initial, graph.edges, details))


@pytest.fixture
def nasty(transactional_db, labels):
    order = Order.objects.create(customer=SCRIPT[:100], total=25)
    villain = get_user_model().objects.create_user(SCRIPT)
    order.states.transition_to("PAID", user=villain, metadata={"note": SCRIPT, SCRIPT: {"deep": [SCRIPT]}})
    set_clock(order, next_at=None, failures=3, error=SCRIPT)
    return order


def test_no_script_runs_on_any_page(page, nasty):
    seen = []

    def look():
        assert page.evaluate("window.hacked") is None, page.url
        seen.append(page.title())

    page.goto(address(Order, "changelist"))
    look()
    page.locator("#result_list tbody input").check()
    choose(page, f"Move to CANCELLED {SCRIPT}")
    expect(page.locator(".smf-can")).to_contain_text(SCRIPT)
    look()
    page.goto(row_page(nasty))
    expect(badge(page)).to_contain_text(SCRIPT)
    expect(page.locator(".smf-story .smf-actor")).to_contain_text(SCRIPT)
    expect(page.locator(".smf-facts")).to_contain_text(SCRIPT)
    expect(page.locator(".smf-error")).to_contain_text(SCRIPT)
    look()
    page.locator(".smf-choices [value=CANCELLED]").click()
    expect(page.locator(".smf-question")).to_contain_text(SCRIPT)
    look()
    page.locator("[type=submit].default").click()
    expect(message(page)).to_contain_text("was moved from PAID")
    look()
    for page_of_row in ("story", "history"):
        arguments = [nasty.pk, "states"] if page_of_row == "story" else [nasty.pk]
        page.goto(address(nasty, page_of_row, *arguments))
        look()
    page.goto(address(Order, "machine", "states"))
    look()
    assert len(seen) == 8
