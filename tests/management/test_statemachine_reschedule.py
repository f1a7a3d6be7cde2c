"""`statemachine_reschedule`: what it prints and takes, and the day a table that is in use gets a handler."""

from __future__ import annotations

import re
from io import StringIO

import pytest
from django.core.management import CommandError, call_command

from lab.models import Chore, Ticking
from statemachine_fields.db.expressions import MachineValue
from tests.scratch import ServedProject
from tests.settings import SMF_DB

pytestmark = pytest.mark.django_db


class Terminal(StringIO):
    def isatty(self):
        return True


def run(*arguments, **options):
    """Return what the command printed."""
    out = StringIO()
    call_command("statemachine_reschedule", *arguments, stdout=out, **options)
    return out.getvalue()


def forget_times(model=Chore):
    model.objects.update(status_next_at=MachineValue(None))


class TestCommand:
    def test_a_line_for_each_machine_and_each_state_that_changed(self):
        Chore.objects.bulk_create([Chore(status=status) for status in ("NEW", "NEW", "DONE", "HELD")])
        Ticking.objects.create()
        forget_times()
        assert run("lab.Chore", "lab.Ticking") == (
            "lab.Chore.states: 3 of 4 rows\n"
            "  NEW: 2 got a time, 0 got another, 0 lost theirs\n"
            "  DONE: 1 got a time, 0 got another, 0 lost theirs\n"
            "lab.Ticking.states: 0 of 1 row\n"
        )
        assert Chore.states.due().count() == 2
        assert run("lab.Chore") == "lab.Chore.states: 0 of 4 rows\n"

    def test_dry_run_writes_nothing(self):
        Chore.objects.create()
        forget_times()
        assert run("lab.Chore", "--dry-run") == (
            "lab.Chore.states: 1 of 1 row\n"
            "  NEW: 1 got a time, 0 got another, 0 lost theirs\n"
            "Nothing was written: this was a dry run.\n"
        )
        assert not Chore.states.due().exists()

    def test_without_labels_every_timed_machine_is_looked_at(self):
        names = re.findall(r"^([\w.]+): ", run(), re.MULTILINE)
        assert {"lab.Chore.states", "lab.Ticking.states", "lab.ByWorker.states"} <= set(names)
        assert "lab.ByHand.states" not in names
        assert len(names) == len(set(names))

    @pytest.mark.parametrize(
        ("arguments", "said"),
        [
            (["lab.ByHand", "lab.Stamped"], "^None of these machines is timed. Give a state a handler or a policy"),
            (["lab.Chor"], "Did you mean 'Chore'"),
            (["lab.Chore", "--batch-size", "0"], "--batch-size"),
            (["lab.Chore", "--database", "nowhere"], "--database"),
        ],
        ids=["not timed", "unknown label", "no batch", "no such database"],
    )
    def test_what_cannot_be_done_is_refused(self, arguments, said):
        with pytest.raises(CommandError, match=said):
            run(*arguments)

    @pytest.mark.django_db(databases=["default", "other"])
    def test_database_is_the_one_to_write_to(self):
        Chore.objects.using("other").create()
        Chore.objects.using("other").update(status_next_at=MachineValue(None))
        assert run("lab.Chore", "--database", "other").startswith("lab.Chore.states: 1 of 1 row\n")
        assert run("lab.Chore").startswith("lab.Chore.states: 0 of 0 rows\n")

    def test_progress_is_for_terminals(self):
        Chore.objects.bulk_create([Chore() for _ in range(10)])
        shown = {}
        for name, err, arguments in [
            ("terminal", Terminal(), ()),
            ("switched off", Terminal(), ("--no-progress",)),
            ("log", StringIO(), ()),
        ]:
            run("lab.Chore", "--batch-size", "1", *arguments, stderr=err)
            shown[name] = err.getvalue()
        assert shown["terminal"].startswith("\rlab.Chore.states [###...........................]  10% of 10 rows\x1b[K")
        assert shown["terminal"].endswith("\r\x1b[K")
        assert (shown["switched off"], shown["log"]) == ("", "")


BEFORE = """
    from django.db import models
    from statemachine_fields import StateMachine

    class Order(models.Model):
        paid = models.BooleanField(default=False)
        states = StateMachine(
            states=[("PENDING", "Pending"), ("PAID", "Paid"), ("SHIPPED", "Shipped")],
            initial="PENDING",
            transitions={"PENDING": ["PAID"], "PAID": ["SHIPPED"]},
        )
"""
AFTER = """
    from django.db import models
    from statemachine_fields import State, StateMachine

    class Order(models.Model):
        paid = models.BooleanField(default=False)
        states = StateMachine(
            states=[
                State("PENDING", "Pending", retry_after=60),
                State("PAID", "Paid", external=True),
                State("SHIPPED", "Shipped", delete_after=365 * 24 * 60 * 60),
            ],
            initial="PENDING",
            transitions={"PENDING": ["PAID"], "PAID": ["SHIPPED"]},
        )

        @states.handler("PENDING")
        def payment_arrived(self):
            return "PAID" if self.paid else None
"""
STATES = "print(*Order.objects.order_by('pk').values_list('status', flat=True))"
MISMATCHES = (
    "from statemachine_fields.schedule.reschedule import mismatches; print(*mismatches(Order.states._meta, 'default'))"
)


@pytest.fixture
def shop(tmp_path, django_db_blocker):
    """A project in use, whose machine is not timed."""
    with django_db_blocker.unblock():
        shop = ServedProject(tmp_path)
        shop.imports = "from shop.models import Order\nfrom statemachine_fields.testing import drain\n"
        shop.write("shop/migrations/__init__.py", "")
        shop.write("shop/models.py", BEFORE)
        shop.manage("makemigrations")
        shop.manage("migrate", "-v0")
        shop.shell(
            "Order.objects.bulk_create([Order(paid=True), Order(), Order(paid=True), Order(status='PAID')]);"
            "Order.objects.create(status='PAID').states.transition_to('SHIPPED')"
        )
        yield shop
        shop.close()


@pytest.mark.django_db(transaction=True)
@pytest.mark.skipif(SMF_DB == "mariadb", reason="the scratch project has no driver for it")
def test_a_table_in_use_becomes_timed(shop):
    shop.write("shop/models.py", AFTER)
    shop.add_settings("INSTALLED_APPS += ['statemachine_fields.worker']")
    operations = re.findall(r"[+~-] .*", shop.manage("makemigrations", "--name", "timed"))
    columns = ["attempts", "claimed_at", "crashes", "error", "failures"]
    columns += ["lease_expires_at", "lease_owner", "lease_token", "next_at", "next_at_pinned"]
    assert [each for each in sorted(operations) if "index" not in each] == [
        f"+ Add field status_{column} to order" for column in columns
    ]
    indexes = [re.sub(r"shop_\w+", "...", each) for each in sorted(operations) if "index" in each]
    assert indexes == [
        "+ Create index ... on field(s) status, status_next_at of model order",
        "+ Create index ... on field(s) status_crashes, status_next_at of model order",
        "- Remove index ... from order",
    ]
    assert "statemachine_fields" not in shop.read("shop/migrations/*_timed.py")
    shop.manage("migrate", "-v0")
    assert shop.manage("makemigrations", "--check", "--dry-run") == "No changes detected\n"
    assert shop.manage("check") == "System check identified no issues (0 silenced).\n"

    # Rows that were there have no time, so nobody looks at them, and a worker that starts would say so.
    assert shop.shell("print(drain(Order).tries)") == "0"
    assert shop.shell(MISMATCHES) == "False True"
    assert shop.manage("statemachine_reschedule", "shop") == (
        "shop.Order.states: 4 of 5 rows\n"
        "  PENDING: 3 got a time, 0 got another, 0 lost theirs\n"
        "  SHIPPED: 1 got a time, 0 got another, 0 lost theirs\n"
    )
    assert shop.shell(MISMATCHES) == "False False"
    assert shop.shell("print(drain(Order, collapse_time=False).tries)") == "3"
    assert shop.shell(STATES) == "PAID PENDING PAID PAID SHIPPED"
    assert shop.manage("statemachine_verify", "shop").endswith("5 rows, 3 records, 0 errors, 0 warnings\n")

    # And back: the handler goes, and with it the times of the rows that waited for it.
    shop.write("shop/models.py", AFTER.replace('@states.handler("PENDING")', "").replace(", retry_after=60", ""))
    assert shop.shell(MISMATCHES) == "True False"
    assert "  PENDING: 0 got a time, 0 got another, 1 lost theirs\n" in shop.manage("statemachine_reschedule")
    assert shop.shell(MISMATCHES) == "False False"
