"""Machines that change while they run: releases of one project side by side on one database, each with its own code.

What `docs/howto/changing-machines.md` says about the order of deployments, tried with real processes.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import psycopg
import pytest

from tests.patience import PATIENCE, eventually
from tests.scratch import ServedProject
from tests.settings import DATABASES, SMF_DB

pytestmark = [
    pytest.mark.django_db(transaction=True),
    pytest.mark.skipif(SMF_DB != "postgresql", reason="SQLite has one worker process"),
]

MODELS = """
from django.db import models
from statemachine_fields import State, StateMachine

class Order(models.Model):
    by_card = models.BooleanField(default=False)
    held = models.BooleanField(default=False)
    states = StateMachine(states=[{states}], initial="PENDING", transitions={{{transitions}}})
{handlers}
"""
HANDLER = """
    @states.handler({states})
    def handle_{name}(self):
        return None if self.held else {returns}
"""
RENAME = """
from django.db import migrations
from statemachine_fields.operations import RenameState

class Migration(migrations.Migration):
    atomic = False
    dependencies = [("shop", "0001_initial")]
    operations = [RenameState("order", "PAID", "SETTLED", target_in_use=True, batch_size=7)]
"""
SETTINGS = """
INSTALLED_APPS += ["statemachine_fields.worker"]
STATEMACHINE_FIELDS = {"POLL_SECONDS": 0.05, "LEASE_SECONDS": 20}
"""


def source(states, transitions, **handlers):
    """Return a release's models: states, moves, and for each handler its states and what it returns."""
    options = {"PENDING": ", external=True", "SHIPPED": ""}
    written = [each if "(" in each else f'State("{each}"{options.get(each, ", retry_after=1")})' for each in states]
    return MODELS.format(
        states=", ".join(written),
        transitions=", ".join(f"{state!r}: {targets!r}" for state, targets in transitions.items()),
        handlers="".join(HANDLER.format(name=n, states=s, returns=r) for n, (s, r) in handlers.items()),
    )


class Release(ServedProject):
    """One release of the project. The first makes the database, others are copies with code of their own."""

    imports = "from shop.models import Order\n"

    def __init__(self, root, models):
        super().__init__(root)
        self.add_settings(SETTINGS)
        self.write("shop/migrations/__init__.py", "")
        self.write("shop/models.py", models)
        self.manage("makemigrations", "shop")
        self.manage("migrate", "-v0")

    def next(self, models, **migrations):
        """Return a release of other code, on the same database."""
        made = object.__new__(type(self))
        made.root, made.name = self.root.with_name(f"{self.root.name}_next"), self.name
        shutil.copytree(self.root, made.root, ignore=shutil.ignore_patterns("__pycache__"))
        made.write("shop/models.py", models)
        for name, text in migrations.items():
            made.write(f"shop/migrations/{name}.py", text)
        assert "No changes detected" in made.manage("makemigrations", "--check", "--dry-run")
        return made

    @contextmanager
    def worker(self) -> Iterator[None]:
        """Let a worker of this release run."""
        command = [sys.executable, "-m", "django", "statemachine_worker", "shop"]
        said = self.root / "worker.log"
        with said.open("w") as file:
            worker = subprocess.Popen(command, cwd=self.root, env=self.environment, stderr=file)
        try:
            yield
            eventually(lambda: " moved · " in said.read_text() or worker.poll() is not None, "it hears signals")
        finally:
            worker.terminate()
            worker.wait(PATIENCE)
        log = said.read_text()
        assert worker.returncode == 0, log
        assert "ERROR" not in log, log
        warnings = [line for line in log.splitlines() if "WARNING" in line]
        assert all("which this code does not declare" in line for line in warnings), log  # as of a newer release

    def create(self, number, status, **values):
        """Let this release make orders that a customer then pays."""
        given = ", ".join(f"{name}={value!r}" for name, value in values.items())
        self.shell(f"[Order.objects.create({given}).states.transition_to({status!r}) for _ in range({number})]")

    def count(self):
        """Return how many orders there are in each state."""
        given = DATABASES["default"]
        place = {"host": given["HOST"], "port": given["PORT"], "user": given["USER"], "password": given["PASSWORD"]}
        with psycopg.connect(dbname=self.name, **{name: value for name, value in place.items() if value}) as session:
            return dict(session.execute("SELECT status, count(*) FROM shop_order GROUP BY status").fetchall())

    def becomes(self, expected):
        eventually(lambda: self.count() == expected, f"{expected}")

    def verify(self):
        """Return the last line of statemachine_verify, which must find nothing, not even a state that is not declared."""
        return self.manage("statemachine_verify", "--strict").splitlines()[-1]


@pytest.fixture
def deploy(tmp_path, django_db_blocker):
    made = []

    def deploy(models):
        made.append(Release(tmp_path / "first", models))
        return made[-1]

    with django_db_blocker.unblock():
        yield deploy
        for release in made:
            release.close()


def retired(state):
    """Return a state that this release serves and does not enter: no more, or not yet."""
    return f'State("{state}", retired=True, retry_after=1)'


BEFORE = source(
    ["PENDING", "PAID", "SHIPPED"], {"PENDING": ["PAID"], "PAID": ["SHIPPED"]}, ship=('"PAID"', '"SHIPPED"')
)


class TestRenaming:
    #: Both are declared and served, and the old one is entered.
    KNOWN = source(
        ["PENDING", "PAID", retired("SETTLED"), "SHIPPED"],
        {"PENDING": ["PAID"], "PAID": ["SHIPPED"], "SETTLED": ["SHIPPED"]},
        ship=('"PAID", "SETTLED"', '"SHIPPED"'),
    )
    #: The new one is entered.
    ENTERED = source(
        ["PENDING", retired("PAID"), "SETTLED", "SHIPPED"],
        {"PENDING": ["SETTLED"], "PAID": ["SHIPPED"], "SETTLED": ["SHIPPED"]},
        ship=('"PAID", "SETTLED"', '"SHIPPED"'),
    )
    AFTER = source(
        ["PENDING", "SETTLED", "SHIPPED"],
        {"PENDING": ["SETTLED"], "SETTLED": ["SHIPPED"]},
        ship=('"SETTLED"', '"SHIPPED"'),
    )

    def test_code_and_rows_in_three_releases_without_a_stop(self, deploy):
        before = deploy(BEFORE)
        before.create(3, "PAID"), before.create(3, "PAID", held=True)
        known = before.next(self.KNOWN)
        entered = known.next(self.ENTERED)
        after = entered.next(self.AFTER, **{"0002_rename": RENAME})

        with before.worker(), known.worker():
            before.create(5, "PAID"), known.create(5, "PAID")
            known.becomes({"SHIPPED": 13, "PAID": 3})
        with known.worker(), entered.worker():
            known.create(5, "PAID"), entered.create(5, "SETTLED"), entered.create(2, "SETTLED", held=True)
            known.becomes({"SHIPPED": 23, "PAID": 3, "SETTLED": 2})
        with entered.worker():
            after.manage("migrate", "-v0")
            assert after.count() == {"SHIPPED": 23, "SETTLED": 5}
            entered.create(5, "SETTLED")
            assert entered.verify().endswith("0 errors, 0 warnings")
            entered.becomes({"SHIPPED": 28, "SETTLED": 5})
        with entered.worker(), after.worker():
            after.create(5, "SETTLED")
            after.shell("Order.objects.update(held=False)")
            after.becomes({"SHIPPED": 38})
        assert after.verify() == "shop.Order.states: 38 rows, 76 records, 0 errors, 0 warnings"

        # And back: the release before declares both names.
        after.manage("migrate", "-v0", "shop", "0001")
        assert entered.verify().endswith("0 errors, 0 warnings")


class TestAdding:
    """CHECKED comes between PAID and SHIPPED."""

    KNOWN = source(
        ["PENDING", "PAID", retired("CHECKED"), "SHIPPED"],
        {"PENDING": ["PAID"], "PAID": ["SHIPPED"], "CHECKED": ["SHIPPED"]},
        ship=('"PAID", "CHECKED"', '"SHIPPED"'),
    )
    ENTERED = source(
        ["PENDING", "PAID", "CHECKED", "SHIPPED"],
        {"PENDING": ["PAID"], "PAID": ["CHECKED"], "CHECKED": ["SHIPPED"]},
        check=('"PAID"', '"CHECKED"'),
        ship=('"CHECKED"', '"SHIPPED"'),
    )

    def test_in_one_release_leaves_rows_to_the_new_code(self, deploy):
        """What old code does with a state that it does not know: nothing, and it says so to who asks."""
        before = deploy(BEFORE)
        entered = before.next(self.ENTERED)
        entered.create(1, "PAID")
        entered.shell("order = Order.objects.get(); order.states.transition_to('CHECKED')")
        code = (
            "from statemachine_fields import InvalidStateTransition\n"
            "order = Order.objects.get()\n"
            "print(order.states.current, order.states.display, order.states.get_valid_transitions())\n"
            "order.save()\n"
            "try: order.states.transition_to('SHIPPED')\n"
            "except InvalidStateTransition as error: print(type(error).__name__)"
        )
        assert before.shell(code).splitlines() == ["CHECKED CHECKED []", "InvalidStateTransition"]
        with before.worker():
            before.create(3, "PAID")
            before.becomes({"SHIPPED": 3, "CHECKED": 1})
        with before.worker(), entered.worker():
            entered.becomes({"SHIPPED": 4})
        assert (
            entered.shell("print(Order.states.transition_model.objects.filter(from_status='CHECKED').count())") == "1"
        )

    def test_in_two_releases_lets_both_move_every_row(self, deploy):
        before = deploy(BEFORE)
        known = before.next(self.KNOWN)
        entered = known.next(self.ENTERED)
        with before.worker(), known.worker():
            before.create(3, "PAID"), known.create(3, "PAID")
            known.becomes({"SHIPPED": 6})
        entered.create(2, "PAID")
        entered.shell("[order.states.transition_to('CHECKED') for order in Order.objects.filter(status='PAID')]")
        known.shell("Order.objects.filter(status='CHECKED').first().states.transition_to('SHIPPED')")
        with known.worker():  # alone
            known.becomes({"SHIPPED": 8})
        with known.worker(), entered.worker():
            known.create(3, "PAID"), entered.create(3, "PAID")
            entered.becomes({"SHIPPED": 14})


class TestSplitting:
    """PAID becomes BY_CARD and BY_BANK."""

    KNOWN = source(
        ["PENDING", "PAID", retired("BY_CARD"), retired("BY_BANK"), "SHIPPED"],
        {"PENDING": ["PAID"], "PAID": ["SHIPPED"], "BY_CARD": ["SHIPPED"], "BY_BANK": ["SHIPPED"]},
        ship=('"PAID", "BY_CARD", "BY_BANK"', '"SHIPPED"'),
    )
    ENTERED = source(
        ["PENDING", retired("PAID"), "BY_CARD", "BY_BANK", "SHIPPED"],
        {
            "PENDING": ["BY_CARD", "BY_BANK"],
            "PAID": ["BY_CARD", "BY_BANK"],
            "BY_CARD": ["SHIPPED"],
            "BY_BANK": ["SHIPPED"],
        },
        split=('"PAID"', '"BY_CARD" if self.by_card else "BY_BANK"'),
        ship=('"BY_CARD", "BY_BANK"', '"SHIPPED"'),
    )

    def test_rows_in_two_releases_while_workers_run(self, deploy):
        before = deploy(BEFORE)
        known = before.next(self.KNOWN)
        entered = known.next(self.ENTERED)
        known.create(2, "PAID", held=True), known.create(3, "PAID", held=True, by_card=True)
        with known.worker(), entered.worker():
            known.create(3, "PAID"), entered.create(3, "BY_BANK"), entered.create(1, "BY_CARD")
            known.becomes({"PAID": 5, "SHIPPED": 7})
        with entered.worker():
            move = "Order.states.bulk_transition(Order.states.in_state('PAID').filter(by_card=True), 'BY_CARD')"
            assert entered.shell(f"print({move}.moved)") == "3"
            entered.shell("Order.objects.filter(status='PAID').update(held=False)")  # and the rest by the handler
            entered.becomes({"BY_CARD": 3, "SHIPPED": 9})
        assert entered.verify().endswith("0 errors, 0 warnings")
        made = "Order.states.transition_model.objects.filter(from_status='PAID', instance_id__lte=5).order_by('instance_id')"
        assert entered.shell(f"print(*{made}.values_list('to_status', flat=True))") == (
            "BY_BANK BY_BANK BY_CARD BY_CARD BY_CARD"
        )


class TestMergingAndRemoving:
    """BY_CARD and BY_BANK become PAID, and are then gone."""

    BEFORE = source(
        ["PENDING", "BY_CARD", "BY_BANK", "SHIPPED"],
        {"PENDING": ["BY_CARD", "BY_BANK"], "BY_CARD": ["SHIPPED"], "BY_BANK": ["SHIPPED"]},
        ship=('"BY_CARD", "BY_BANK"', '"SHIPPED"'),
    )
    KNOWN = source(
        ["PENDING", "BY_CARD", "BY_BANK", retired("PAID"), "SHIPPED"],
        {"PENDING": ["BY_CARD", "BY_BANK"], "BY_CARD": ["SHIPPED"], "BY_BANK": ["SHIPPED"], "PAID": ["SHIPPED"]},
        ship=('"BY_CARD", "BY_BANK", "PAID"', '"SHIPPED"'),
    )
    ENTERED = source(
        [
            "PENDING",
            retired("BY_CARD"),
            retired("BY_BANK"),
            "PAID",
            "SHIPPED",
        ],
        {"PENDING": ["PAID"], "BY_CARD": ["PAID"], "BY_BANK": ["PAID"], "PAID": ["SHIPPED"]},
        merge=('"BY_CARD", "BY_BANK"', '"PAID"'),
        ship=('"PAID"', '"SHIPPED"'),
    )

    def test_rows_and_then_the_states(self, deploy):
        before = deploy(self.BEFORE)
        known = before.next(self.KNOWN)
        entered = known.next(self.ENTERED)
        after = entered.next(BEFORE)
        before.create(2, "BY_CARD", held=True), before.create(2, "BY_BANK", held=True)
        with known.worker(), entered.worker():
            known.create(2, "BY_CARD"), entered.create(2, "PAID")
            known.becomes({"BY_CARD": 2, "BY_BANK": 2, "SHIPPED": 4})
        with entered.worker():
            move = "Order.states.bulk_transition(Order.states.in_state('BY_CARD', 'BY_BANK'), 'PAID')"
            assert entered.shell(f"print({move}.moved)") == "4"
            assert entered.verify().endswith("0 errors, 0 warnings")  # history knows the states, and they are declared
        with entered.worker(), after.worker():
            after.shell("Order.objects.update(held=False)")
            after.becomes({"SHIPPED": 8})
        told = after.manage("statemachine_verify", check=False)  # what is removed is still in records
        assert "state-undeclared: States that are not declared: record 1 has 'BY_CARD'" in told
        assert entered.verify().endswith("0 errors, 0 warnings")
