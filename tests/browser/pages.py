"""Where the pages are, and what people find on them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from django.urls import reverse

if TYPE_CHECKING:
    from playwright.sync_api import Locator, Page

BACKGROUND = "element => getComputedStyle(element).backgroundColor"


def address(model: Any, page: str, *args: Any) -> str:
    """Return the address of a page of the admin, of a model or of a row."""
    return reverse(f"admin:{model._meta.app_label}_{model._meta.model_name}_{page}", args=args)


def row_page(row: Any) -> str:
    return address(row, "change", row.pk)


def button(page: Page, name: str) -> Locator:
    return page.get_by_role("button", name=name, exact=True)


def choose(page: Page, action: str) -> None:
    """Choose an action of the list for the rows that are ticked. Its button is called "Go", and "Run" since Django 6.1."""
    page.get_by_label("Action:").select_option(label=action)
    page.locator(".actions button").click()


def badge(page: Page) -> Locator:
    """Return the badge at the top of a row's page."""
    return page.locator(".smf-panel-head .smf-badge")


def moves(page: Page) -> Locator:
    """Return the buttons that move the row."""
    return page.locator(".smf-choices button")


def message(page: Page) -> Locator:
    """Return what the site says about what was just done."""
    return page.locator(".messagelist li")


def tab_to(page: Page, target: Locator) -> None:
    """Press Tab until the target has the focus, past the links of the site."""
    page.keyboard.press("Tab")
    page.keyboard.press("Enter")  # "Skip to main content"
    for _ in range(40):
        page.keyboard.press("Tab")
        if target.evaluate("element => element === document.activeElement"):
            return
    raise AssertionError(f"Tab does not lead to {target}")
