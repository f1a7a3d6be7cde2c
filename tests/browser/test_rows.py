"""The page of a row: what it shows, and how people move the row from there."""

import pytest
from django.contrib.admin.models import LogEntry
from django.contrib.auth import get_user_model
from django.contrib.auth.models import Permission

from shop.forms import ReturnForm
from shop.models import Order
from tests.browser.chromium import expect
from tests.browser.orders import TAKE_BACK
from tests.browser.pages import BACKGROUND, address, badge, button, message, moves, row_page, tab_to

#: Counts what would be sent, and holds it back.
COUNT_SUBMITS = """() => {
    window.submits = 0;
    addEventListener("submit", event => { submits += !event.defaultPrevented; event.preventDefault() });
}"""
OUTLINE = "element => getComputedStyle(element).outlineStyle"


def records_of(row):
    return list(row.states.history)


@pytest.fixture
def colleague(transactional_db):
    return get_user_model().objects.create_user("barbara")


@pytest.fixture
def shipped(transactional_db):
    return Order.objects.create(customer="Ada", total=25, status="SHIPPED")


# What it shows


def test_status_is_a_badge_and_nothing_to_type(page, order):
    page.goto(row_page(order))
    expect(badge(page)).to_have_text("Pending")
    expect(page.locator("[name^=status]")).to_have_count(0)

    page.goto(address(Order, "add"))
    expect(page.locator("[name=customer]")).to_be_visible()
    expect(page.locator("[name^=status]")).to_have_count(0)


def test_who_may_only_look_sees_all_and_finds_no_button(visit, order, colleague):
    order.states.transition_to("PAID", metadata={"note": "by card"})
    colleague.is_staff = True
    colleague.save()
    colleague.user_permissions.set(Permission.objects.filter(codename="view_order"))
    page = visit(colleague)

    page.goto(row_page(order))

    expect(badge(page)).to_have_text("Paid")
    expect(page.locator(".smf-drawing svg:visible")).to_have_count(1)
    expect(page.locator(".smf-story")).to_contain_text("by card")
    expect(page.locator(".smf-panel button, .smf-panel input")).to_have_count(0)


def test_what_was_folded_stays_folded(page, order):
    page.goto(row_page(order))
    *_others, graph, story = page.locator("details.smf-fold").all()
    for fold in (graph, story):
        expect(fold).to_have_attribute("open", "")

    graph.locator("summary").focus()
    page.keyboard.press("Enter")
    expect(graph).not_to_have_attribute("open", "")
    page.reload()

    expect(graph).not_to_have_attribute("open", "")
    expect(story).to_have_attribute("open", "")


# Moves


def test_button_moves_the_row_once_and_the_next_buttons_appear(page, order, user):
    page.goto(row_page(order))
    expect(moves(page)).to_have_text(["Move to Paid", "Cancel"])

    button(page, "Move to Paid").click()

    expect(message(page)).to_have_text(f"“Order {order.pk} of Ada” was moved from Pending to Paid.")
    expect(badge(page)).to_have_text("Paid")
    expect(moves(page)).to_have_text(["Move to Packed", "Cancel"])
    order.refresh_from_db()
    assert order.status == "PAID"
    [record] = records_of(order)
    assert record.metadata == {"actor": {"model": "auth.User", "pk": user.pk, "text": "grace"}}
    [entry] = LogEntry.objects.all()
    assert (entry.user, entry.object_id, entry.change_message) == (user, str(order.pk), "Moved from Pending to Paid.")


def test_note_goes_into_the_record_and_the_story(page, order):
    page.goto(row_page(order))
    page.get_by_label("Note").fill("Paid in the shop, in cash")

    button(page, "Move to Paid").click()

    expect(page.locator(".smf-story li").first).to_contain_text("by grace")
    expect(page.locator(".smf-story li").first).to_contain_text("Paid in the shop, in cash")
    [record] = records_of(order)
    assert record.metadata["note"] == "Paid in the shop, in cash"


def test_move_that_is_blocked_says_why(page):
    cheap = Order.objects.create(customer="Ada", total=10, status="SHIPPED")
    page.goto(row_page(cheap))

    blocked = button(page, TAKE_BACK)

    expect(blocked).to_be_disabled()
    expect(blocked).to_have_accessible_description("What costs less than 20 is not taken back.")
    expect(page.get_by_text("What costs less than 20 is not taken back.")).to_be_visible()
    expect(button(page, "Move to Delivered")).to_be_enabled()


def test_end_of_the_way_has_no_buttons(page):
    page.goto(row_page(Order.objects.create(customer="Ada", total=10, status="CANCELLED")))

    expect(page.get_by_text("no move leads out of it")).to_be_visible()
    expect(moves(page)).to_have_count(0)


def test_question_is_asked_and_no_means_no(page, order):
    page.goto(row_page(order))
    page.get_by_label("Note").fill("They called")
    button(page, "Cancel").click()
    expect(page.get_by_text("Cancel this order for good? The customer is told at once.")).to_be_visible()

    page.get_by_role("link", name="No, take me back").click()
    expect(badge(page)).to_have_text("Pending")
    assert not records_of(order)

    page.get_by_label("Note").fill("They called")
    button(page, "Cancel").click()
    expect(page.get_by_label("Note")).to_have_value("They called")
    button(page, "Yes, I’m sure").click()
    expect(badge(page)).to_have_text("Cancelled")
    [record] = records_of(order)
    assert record.metadata["note"] == "They called"


def test_dangerous_move_is_red_and_enter_does_not_make_it(page, order, dangerous):
    page.goto(row_page(order))
    red = button(page, "Cancel").evaluate(BACKGROUND)
    assert red != button(page, "Move to Paid").evaluate(BACKGROUND)
    button(page, "Cancel").click()
    assert button(page, "Yes, I’m sure").evaluate(BACKGROUND) == red

    page.get_by_label("Note").fill("They called")
    page.keyboard.press("Enter")
    expect(page.get_by_label("Note")).to_have_value("They called")
    assert not records_of(order)

    button(page, "Yes, I’m sure").click()
    expect(badge(page)).to_have_text("Cancelled")


def test_refused_form_keeps_what_was_typed(page, shipped):
    page.goto(row_page(shipped))
    button(page, TAKE_BACK).click()
    page.get_by_label("Remark").fill("Torn, and wet")
    Order.objects.filter(pk=shipped.pk).update(total=5)

    button(page, TAKE_BACK).click()

    expect(page.get_by_text("What costs less than 20 is not taken back.")).to_be_visible()
    expect(page.get_by_label("Remark")).to_have_value("Torn, and wet")
    Order.objects.filter(pk=shipped.pk).update(total=25)
    button(page, TAKE_BACK).click()
    expect(badge(page)).to_have_text("Returned")
    assert records_of(shipped)[0].metadata["remark"] == "Torn, and wet"


def test_form_of_a_move_is_corrected_in_place(page, shipped, monkeypatch):
    monkeypatch.setattr(ReturnForm.base_fields["remark"], "required", True)
    page.goto(row_page(shipped))
    button(page, TAKE_BACK).click()
    page.get_by_label("Reason").select_option("wrong")

    button(page, TAKE_BACK).click()

    expect(page.locator(".errornote")).to_be_visible()
    expect(page.locator(".field-remark .errorlist")).to_have_text("This field is required.")
    expect(page.get_by_label("Reason")).to_have_value("wrong")
    assert not records_of(shipped)

    page.get_by_label("Remark").fill("Blue, not green")
    button(page, TAKE_BACK).click()

    expect(badge(page)).to_have_text("Returned")
    [record] = records_of(shipped)
    assert record.metadata == {
        "actor": record.metadata["actor"],
        "reason": "wrong",
        "remark": "Blue, not green",
    }
    for words in ("wrong", "Blue, not green"):
        expect(page.locator(".smf-story")).to_contain_text(words)


# Several people, and several clicks


def test_who_comes_too_late_is_told_who_was_faster(page, order, colleague):
    page.goto(row_page(order))
    order.states.transition_to("PAID", user=colleague)

    button(page, "Move to Paid").click()

    expect(message(page)).to_contain_text(f"“Order {order.pk} of Ada” was not moved: barbara moved it to Paid")
    expect(badge(page)).to_have_text("Paid")
    assert len(records_of(order)) == 1
    assert not LogEntry.objects.exists()


def test_question_answered_too_late_moves_nothing(page, order, colleague):
    page.goto(row_page(order))
    button(page, "Cancel").click()
    order.states.transition_to("PAID", user=colleague)

    button(page, "Yes, I’m sure").click()

    expect(message(page)).to_contain_text("barbara moved it to Paid")
    order.refresh_from_db()
    assert order.status == "PAID"


def test_double_click_moves_once(page, order):
    page.goto(row_page(order))

    button(page, "Move to Paid").dblclick()

    expect(message(page)).to_contain_text("was moved from Pending to Paid")
    assert len(records_of(order)) == 1


def test_second_click_on_the_answer_is_not_sent(page, order):
    page.goto(row_page(order))
    button(page, "Cancel").click()
    expect(page.locator(".smf-question")).to_be_visible()

    answer = button(page, "Yes, I’m sure")
    page.evaluate(COUNT_SUBMITS)
    answer.evaluate("button => { button.click(); button.click() }")

    assert page.evaluate("submits") == 1


def test_same_button_in_two_tabs_moves_once(page, order):
    other = page.context.new_page()
    for tab in (page, other):
        tab.goto(row_page(order))

    for tab in (page, other):
        button(tab, "Move to Paid").click()

    expect(message(page)).to_contain_text("was moved from Pending to Paid")
    expect(message(other)).to_contain_text(f"You have moved “Order {order.pk} of Ada” to Paid already.")
    assert len(records_of(order)) == 1


def test_going_back_shows_the_row_as_it_is_by_now(page, order):
    page.goto(row_page(order))
    button(page, "Move to Paid").click()
    expect(badge(page)).to_have_text("Paid")

    page.go_back()

    expect(badge(page)).to_have_text("Paid")
    expect(moves(page)).to_have_text(["Move to Packed", "Cancel"])


def test_what_was_typed_below_is_not_lost_without_a_question(page, order, watch):
    page.goto(row_page(order))
    page.get_by_label("Customer").fill("Ada Lovelace")

    watch.answers = [False]
    button(page, "Move to Paid").click()
    expect(page.get_by_label("Customer")).to_have_value("Ada Lovelace")
    assert not records_of(order)

    watch.answers = [True]
    button(page, "Move to Paid").click()
    expect(badge(page)).to_have_text("Paid")
    order.refresh_from_db()
    assert (order.customer, order.status) == ("Ada", "PAID")
    assert watch.asked == ["What you have typed below is not saved. Go on without it?"] * 2


# Without a mouse, and without scripts


def test_keyboard_alone_moves_the_row(page, order):
    page.goto(row_page(order))
    target = button(page, "Move to Paid")

    tab_to(page, target)
    assert target.evaluate(OUTLINE) != "none"
    page.keyboard.press("Enter")

    expect(badge(page)).to_have_text("Paid")


def test_enter_in_the_note_moves_nothing(page, order):
    page.goto(row_page(order))
    page.evaluate(COUNT_SUBMITS)
    page.get_by_label("Note").fill("Somebody should look at it")

    page.keyboard.press("Enter")

    assert page.evaluate("submits") == 0


def test_everything_works_without_scripts(visit, user, order):
    page = visit(user, java_script_enabled=False)
    page.goto(row_page(order))
    button(page, "Move to Paid").click()
    expect(badge(page)).to_have_text("Paid")

    button(page, "Cancel").click()
    expect(page.locator(".smf-question")).to_be_visible()
    button(page, "Yes, I’m sure").click()

    expect(badge(page)).to_have_text("Cancelled")
    assert len(records_of(order)) == 2
