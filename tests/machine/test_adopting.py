"""A status column that was there becomes a machine by migration: rows keep their status, and nothing is rewritten.

The project of each test is on the database that the suite runs on, in a database of its own.
"""

from __future__ import annotations

import re

import pytest

from tests.docs.pages import DOCS, read_page
from tests.scratch import ServedProject
from tests.settings import SMF_DB

pytestmark = pytest.mark.skipif(SMF_DB == "mariadb", reason="the scratch project has no driver for it")

BEFORE = """
    from django.db import models

    class Order(models.Model):
        status = models.CharField(
            max_length=20, default="PENDING", choices=[("PENDING", "Pending"), ("PAID", "Paid")], db_index=True
        )
"""
AFTER = """
    from django.db import models
    from statemachine_fields import StateMachine

    class Order(models.Model):
        states = StateMachine(
            states=[("PENDING", "Pending"), ("PAID", "Paid"), ("SHIPPED", "Shipped")],
            initial="PENDING",
            transitions={"PENDING": ["PAID"], "PAID": ["SHIPPED"]},
        )
"""
STATUSES = ["PENDING", "PAID", "SHIPPED", "PAID", "LOST", "PENDING"]

IMPORTS = "from shop.models import Order\nfrom django.db import connection\n"
#: Where PostgreSQL keeps the table; a rewrite puts it elsewhere.
FILENODE = "c = connection.cursor(); c.execute(\"SELECT pg_relation_filenode('shop_order')\"); print(c.fetchone()[0])"


class Shop(ServedProject):
    """A project whose orders have a status of their own, with rows in it."""

    imports = IMPORTS

    def __init__(self, root):
        super().__init__(root)
        self.write("shop/migrations/__init__.py", "")
        self.write("shop/models.py", BEFORE)
        self.manage("makemigrations")
        self.manage("migrate", "-v0")
        self.shell(f"Order.objects.bulk_create(Order(status=status) for status in {STATUSES})")
        self.write("shop/models.py", AFTER)

    def makemigrations(self):
        return sorted(re.findall(r"[+~-] .*", self.manage("makemigrations", "--name", "machine")))


@pytest.fixture(scope="module")
def new_shop(tmp_path_factory, django_db_blocker):
    """Return a function that makes projects."""
    made = []

    def make():
        made.append(Shop(tmp_path_factory.mktemp("shop")))
        return made[-1]

    with django_db_blocker.unblock():
        yield make
        for shop in made:
            shop.close()


@pytest.fixture(scope="module")
def adopted(new_shop):
    """A project that has migrated."""
    shop = new_shop()
    shop.operations = shop.makemigrations()
    shop.manage("migrate", "-v0")
    return shop


def test_makes_these_operations(adopted):
    assert adopted.operations == [
        "+ Add field instance to orderstatetransition",
        "+ Add field status_changed_at to order",
        "+ Add field status_sequence to order",
        "+ Create index shop_order_status_63c2c0_idx on field(s) status of model order",
        "+ Create model OrderStateTransition",
        "~ Alter field status on order",
        "~ Alter unique_together for orderstatetransition (1 constraint(s))",
    ]
    assert adopted.manage("makemigrations", "--check", "--dry-run") == "No changes detected\n"


def test_rows_keep_their_status(adopted):
    code = "print(*Order.objects.order_by('pk').values_list('status', 'status_sequence'))"
    assert adopted.shell(code) == " ".join(str((status, 0)) for status in STATUSES)


def test_rows_in_states_that_are_not_declared_are_found(adopted):
    assert adopted.manage("statemachine_verify", "shop", check=False).startswith(
        "error shop.Order.states pk=5 status-undeclared: The row is in 'LOST', which is not declared. "
    )


@pytest.mark.parametrize(
    "code",
    [
        "o = Order.objects.get(pk=1); o.status = 'PAID'; o.save()",
        "Order.objects.filter(pk=1).update(status='PAID')",
        "o = Order.objects.get(pk=1); o.status = 'PAID'; Order.objects.bulk_update([o], ['status'])",
    ],
)
def test_old_code_is_found(adopted, code):
    output = adopted.manage("shell", "-v0", "-c", IMPORTS + code, check=False)
    assert "UnrecordedStatusChange: shop.Order" in output


def test_rows_get_a_first_record_and_go_on_from_there(new_shop):
    shop = new_shop()
    shop.makemigrations()
    shop.manage("migrate", "-v0")
    # Old code is still running, and does not know the columns.
    shop.shell("connection.cursor().execute(\"INSERT INTO shop_order (status) VALUES ('PAID')\")")

    assert shop.shell("print(Order.states.record_initial(Order.objects.all(), batch_size=3))") == "7"
    assert shop.shell("print(Order.states.record_initial(Order.objects.all()))") == "0"
    recorded = shop.shell("print(*(t.to_status for o in Order.objects.order_by('pk') for t in o.states.history))")
    assert recorded == " ".join([*STATUSES, "PAID"])

    shop.shell("Order.objects.get(pk=5).states.force_transition_to('PENDING', reason='found again')")
    shop.shell("Order.objects.get(pk=1).states.transition_to('PAID')")
    verified = shop.manage("statemachine_verify", "shop")
    assert verified.endswith("shop.Order.states: 7 rows, 9 records, 0 errors, 1 warning\n")

    # Somebody still writes the column past the machine.
    shop.shell("connection.cursor().execute(\"UPDATE shop_order SET status = 'PENDING' WHERE id = 1\")")
    verified = shop.manage("statemachine_verify", "shop", check=False)
    assert "pk=1 status-mismatch: The status is 'PENDING', but record 2 says 'PAID'." in verified
    assert "CommandError: 1 error and 1 warning." in verified

    shop.manage("migrate", "-v0", "shop", "0001")
    columns = "connection.introspection.get_table_description(connection.cursor(), 'shop_order')"
    assert shop.shell(f"print(*sorted(column.name for column in {columns}))") == "id status"


@pytest.mark.skipif(SMF_DB != "postgresql", reason="about PostgreSQL")
class TestOnPostgreSQL:
    def test_the_table_is_not_rewritten(self, new_shop):
        shop = new_shop()
        before = shop.shell(FILENODE)
        shop.makemigrations()
        shop.manage("migrate", "-v0")
        assert shop.shell(FILENODE) == before

    def test_the_index_may_be_created_first_and_concurrently(self, new_shop):
        shop = new_shop()
        [step] = [
            step for step in read_page(DOCS / "howto/adopting.md").steps if step.file.endswith("_status_index.py")
        ]
        shop.write(step.file, step.text)
        assert shop.makemigrations() == [
            "+ Add field status_changed_at to order",
            "+ Add field status_sequence to order",
            "+ Create model OrderStateTransition",
            "~ Alter field status on order",
        ]
        assert "CREATE INDEX CONCURRENTLY" in shop.manage("sqlmigrate", "shop", "0002")
        assert "CREATE INDEX" not in shop.manage("sqlmigrate", "shop", "0003")
        shop.manage("migrate", "-v0")
        assert shop.manage("makemigrations", "--check", "--dry-run") == "No changes detected\n"
