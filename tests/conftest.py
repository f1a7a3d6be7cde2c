"""Fixtures for the whole suite. The database is chosen in settings.py."""

import pytest
from django.test.utils import isolate_apps

from tests import emptying

pytest_plugins = ["statemachine_fields.pytest_plugin"]

emptying.install()


@pytest.fixture
def isolated():
    """A registry of the test's own for models that it declares."""
    with isolate_apps("lab"):
        yield


@pytest.fixture
def connect():
    """Connect receivers for the length of a test."""
    connected = []

    def connect(signal, receiver, sender):
        signal.connect(receiver, sender=sender, weak=False)
        connected.append((signal, receiver, sender))

    yield connect
    for signal, receiver, sender in connected:
        signal.disconnect(receiver, sender=sender)


@pytest.fixture
def heard(connect):
    """A function that returns what signals tell of from then on."""

    def listen(*signals, sender=None):
        calls = []
        for signal in signals:
            connect(signal, lambda **told: calls.append(told), sender)
        return calls

    return listen
