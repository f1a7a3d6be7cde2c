"""The tests notice what a page may not do."""

from shop.models import Order
from tests.browser.pages import address

DEEDS = {
    "console": "console.error('bad')",
    "script": "new Promise(done => { setTimeout(() => bad()); setTimeout(done) })",
    "asked elsewhere": "fetch('http://localhost:1/').catch(() => 'of course')",
    "dialog": "alert('bad')",
}


def test_bad_deeds_are_noted(page, watch):
    page.goto(address(Order, "changelist"))
    assert not watch.complaints

    for kind, deed in DEEDS.items():
        page.evaluate(deed)
        assert any(complaint.startswith(f"{kind}: ") for complaint in watch.complaints), watch.complaints
        watch.begin()
