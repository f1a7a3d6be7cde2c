"""One browser for all of these tests, and a page of the admin for each."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from django.conf import settings
from django.contrib.admin import site
from django.contrib.auth import get_user_model
from django.test import Client

from shop.models import Order
from tests.browser import chromium
from tests.settings import SMF_DB

HERE = Path(__file__).parent


@pytest.hookimpl(tryfirst=True)  # before pytest-xdist reads the marks
def pytest_collection_modifyitems(config, items):
    """Keep these tests on one process of pytest-xdist, and skip them where there is no browser.

    What a page shows does not depend on the database. So one is enough, unless the tests are asked for by their path.
    """
    asked_for = any(HERE in (path := Path(arg.split("::")[0]).resolve(), *path.parents) for arg in config.args)
    reason = chromium.why_not()
    if not reason and SMF_DB != "postgresql" and not asked_for:
        reason = "the browser runs on PostgreSQL, as once is enough; `pytest tests/browser` runs it on any database"
    for item in items:
        if HERE in item.path.parents:
            item.add_marker(pytest.mark.xdist_group("browser"))
            if reason:
                item.add_marker(pytest.mark.skip(reason=reason))


@pytest.fixture(scope="package")
def windows(live_server):
    """The browser. Its windows keep what they have loaded from one test to the next: the files, and nothing else."""
    with chromium.start(live_server.url) as windows:
        yield windows


@pytest.fixture
def watch(windows):
    """What pages did that they may not do, which is nothing."""
    windows.watch.begin()
    yield windows.watch
    windows.leave()
    assert not windows.watch.complaints
    assert not windows.watch.answers, "a dialog was expected, and none opened"


@pytest.fixture
def visit(windows, watch, transactional_db):
    """A function that opens a window as a user, and returns its page."""

    def visit(user, **options):
        client = Client()
        client.force_login(user)
        return windows.open(client.cookies[settings.SESSION_COOKIE_NAME], **options)

    return visit


@pytest.fixture
def user(transactional_db):
    """Who looks at the pages, unless a test says otherwise: somebody who may do everything."""
    return get_user_model().objects.create_superuser("grace")


@pytest.fixture
def page(visit, user):
    return visit(user)


@pytest.fixture
def order(transactional_db):
    return Order.objects.create(customer="Ada", total=25)


@pytest.fixture
def order_admin():
    """The admin class of orders, to change for a test with `monkeypatch`: the server is a thread of this process."""
    return site.get_model_admin(Order)


@pytest.fixture
def dangerous(monkeypatch):
    """To cancel an order is dangerous."""
    graph = Order.states._meta.graph
    cancel = replace(graph.transition("PENDING", "CANCELLED"), danger=True)
    details = {**graph.details, ("PENDING", "CANCELLED"): cancel}
    monkeypatch.setattr(Order.states._meta, "graph", replace(graph, details=details))
