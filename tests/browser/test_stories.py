"""The story of a row, on its page and on pages of its own."""

from tests.browser.chromium import expect
from tests.browser.orders import make_history
from tests.browser.pages import row_page


def numbers(page):
    return page.locator(".smf-story .smf-number")


def test_story_turns_its_pages(page, order, order_admin, monkeypatch):
    monkeypatch.setattr(order_admin, "story_per_page", 4)
    make_history(order, 10)
    page.goto(row_page(order))
    expect(numbers(page)).to_have_text(["10", "9", "8", "7", "6"])

    page.get_by_role("link", name="The whole story").click()
    expect(numbers(page)).to_have_text(["10", "9", "8", "7"])
    page.get_by_role("link", name="Older").click()
    expect(numbers(page)).to_have_text(["6", "5", "4", "3"])
    page.get_by_role("link", name="Older").click()
    expect(numbers(page)).to_have_text(["2", "1"])
    page.get_by_role("link", name="Newer").click()
    expect(numbers(page)).to_have_text(["6", "5", "4", "3"])
    page.get_by_role("link", name="Oldest").click()
    expect(numbers(page)).to_have_text(["4", "3", "2", "1"])
    page.get_by_role("link", name="Newest").click()
    expect(numbers(page)).to_have_text(["10", "9", "8", "7"])

    page.locator(".breadcrumbs").get_by_role("link", name=str(order)).click()
    expect(page).to_have_url(row_page(order))
