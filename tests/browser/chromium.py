"""The browser that the tests drive: where it is, how it is started, and what a page may not do."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from http.cookies import Morsel
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from tests.patience import PATIENCE

if find_spec("playwright"):
    from playwright.sync_api import expect, sync_playwright
else:  # the tests are skipped then
    expect = sync_playwright = None  # type: ignore[assignment]

if TYPE_CHECKING:
    from playwright.sync_api import (
        Browser,
        BrowserContext,
        ConsoleMessage,
        Dialog,
        Page,
        Request,
        ViewportSize,
        WebError,
    )

__all__ = ["Windows", "expect", "start", "why_not"]

PROGRAMS = ("chromium", "chromium-browser", "google-chrome")

#: Without a sandbox, as root has none, and without the calls that a browser makes on its own account.
FLAGS = [
    "--no-sandbox",
    "--disable-dev-shm-usage",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--font-render-hinting=none",
]

#: How long to wait for something to appear.
MILLISECONDS = 1000 * PATIENCE


def find_browser() -> str | None:
    """Return the path of the browser: what SMF_BROWSER names, or the first that is installed."""
    named = os.environ.get("SMF_BROWSER")
    return next(filter(None, map(shutil.which, [named] if named else PROGRAMS)), None)


def why_not() -> str:
    """Return why no browser can be driven here, or nothing."""
    if not find_spec("playwright"):
        return "playwright is not installed; it comes with the `test` extra"
    if find_browser() is None:
        wanted = os.environ.get("SMF_BROWSER") or ", ".join(PROGRAMS)
        return f"no browser is found ({wanted}); on Debian: apt install chromium, or name one in SMF_BROWSER"
    return ""


@contextmanager
def start(server: str) -> Iterator[Windows]:
    """Run the browser. Playwright keeps an event loop in this thread meanwhile, in which Django would refuse to work."""
    before = os.environ.get("DJANGO_ALLOW_ASYNC_UNSAFE")
    os.environ["DJANGO_ALLOW_ASYNC_UNSAFE"] = "true"
    try:
        with sync_playwright() as playwright:
            expect.set_options(timeout=MILLISECONDS)
            browser = playwright.chromium.launch(executable_path=find_browser(), args=FLAGS)
            yield Windows(browser, server)
            browser.close()
    finally:
        if before is None:
            del os.environ["DJANGO_ALLOW_ASYNC_UNSAFE"]
        else:
            os.environ["DJANGO_ALLOW_ASYNC_UNSAFE"] = before


class Windows:
    """Windows of one browser, one for each choice of options. Who comes next finds one of them as if it were new.

    Only what it has loaded stays: a page of the admin needs two dozen files, and to load them takes longer than to look.
    """

    size: ViewportSize = {"width": 1280, "height": 800}

    def __init__(self, browser: Browser, server: str) -> None:
        self.browser = browser
        self.server = server
        self.watch = Watch(server)
        self.contexts: dict[str, BrowserContext] = {}

    def open(self, cookie: Morsel[str], **options: Any) -> Page:
        """Return an empty page of somebody who is logged in with this cookie."""
        key = repr(sorted(options.items()))
        if key not in self.contexts:
            self.contexts[key] = self._window(**options)
        context = self.contexts[key]
        context.set_storage_state({"cookies": [], "origins": []})
        context.add_cookies([{"name": cookie.key, "value": cookie.value, "url": self.server}])
        [page] = context.pages
        page.set_viewport_size(self.size)
        page.emulate_media(color_scheme=options.get("color_scheme", "light"))
        return page

    def _window(self, **options: Any) -> BrowserContext:
        context = self.browser.new_context(base_url=self.server, **options)
        context.set_default_timeout(MILLISECONDS)
        context.add_init_script("window.setInterval = () => 0")  # the shop's list would reload itself meanwhile
        self.watch.look_at(context)
        context.new_page()
        return context

    def leave(self) -> None:
        """Leave all pages, so that none asks for anything while the database is emptied."""
        for context in self.contexts.values():
            for page in context.pages[1:]:
                page.close()
            context.pages[0].goto("about:blank")


class Watch:
    """Notes what no page may do: fail in a script, complain in the console, ask another host, open a dialog unasked."""

    def __init__(self, server: str) -> None:
        self.host = urlsplit(server).netloc
        self.begin()

    def begin(self) -> None:
        """Forget what was noted."""
        self.complaints: list[str] = []
        #: What dialogs are going to be answered, and what they have asked.
        self.answers: list[bool] = []
        self.asked: list[str] = []

    def look_at(self, context: BrowserContext) -> None:
        context.on("console", self.on_console)
        context.on("weberror", self.on_error)
        context.on("request", self.on_request)
        context.on("dialog", self.on_dialog)

    def on_console(self, message: ConsoleMessage) -> None:
        is_favicon = urlsplit(message.location["url"]).path == "/favicon.ico"  # the project has none
        if message.type in ("error", "warning") and not is_favicon:
            self.complaints.append(f"console: {message.text} at {message.location}")

    def on_error(self, error: WebError) -> None:
        self.complaints.append(f"script: {error.error}")

    def on_request(self, request: Request) -> None:
        address = urlsplit(request.url)
        if address.scheme != "data" and address.netloc != self.host:
            self.complaints.append(f"asked elsewhere: {request.url}")

    def on_dialog(self, dialog: Dialog) -> None:
        self.asked.append(dialog.message)
        if not self.answers:
            self.complaints.append(f"dialog: {dialog.message}")
        if self.answers and self.answers.pop(0):
            dialog.accept()
        else:
            dialog.dismiss()
