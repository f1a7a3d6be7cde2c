"""`manage.py demo`: a shop whose orders move, to look at."""

from __future__ import annotations

import random
import socket
import sys
from argparse import ArgumentParser
from collections import Counter
from decimal import Decimal
from typing import Any

from django.contrib.auth import get_user_model
from django.core.management import call_command
from django.core.management.base import BaseCommand, CommandError
from django.db import transaction

from shop.models import Order

CUSTOMERS = ["Ada", "Alan", "Barbara", "Donald", "Edsger", "Frances", "Grace", "Ken", "Leslie", "Radia", "Tony"]
CARRIERS = ["DHL", "GLS", "UPS"]
USER = PASSWORD = "admin"


class Command(BaseCommand):
    help = "Create a shop, drive its orders through their states, and serve the admin to look at them."

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("--orders", type=int, default=300, metavar="N", help="how many to create (default: 300)")
        parser.add_argument("--port", type=int, default=8000, help="where to serve the admin (default: 8000)")
        parser.add_argument("--no-serve", action="store_true", help="end after the print-out")

    def handle(self, *args: Any, **options: Any) -> None:
        call_command("migrate", verbosity=0)
        self.ensure_superuser()
        orders = self.create_orders(options["orders"])
        self.drive(orders)
        self.show_history()
        self.show_diagram()
        if not options["no_serve"]:
            self.serve(options["port"])

    def ensure_superuser(self) -> None:
        users = get_user_model()._default_manager
        if not users.filter(username=USER).exists():
            users.create_superuser(USER, "admin@example.com", PASSWORD)

    def create_orders(self, count: int) -> list[Order]:
        if count < 1:
            raise CommandError("--orders must be at least 1.")
        return Order.objects.bulk_create(
            Order(customer=random.choice(CUSTOMERS), total=Decimal(random.randint(500, 50_000)).scaleb(-2))
            for _ in range(count)
        )

    def drive(self, orders: list[Order]) -> None:
        """Move each order along until it is where it ends up, a few hundred moves in all."""
        moves = 0
        for done, order in enumerate(orders, start=1):
            with transaction.atomic():  # one disk flush for each order, not one for each move
                while (targets := order.states.get_valid_transitions()) and self.goes_on(order):
                    order.states.transition_to(self.choose(targets), metadata=self.explain(order))
                    moves += 1
            self.progress(done, len(orders), f"{moves} moves")
        self.stdout.write("")
        total = Order.objects.count()
        counts = Counter(Order.objects.values_list("status", flat=True))
        for state, label in Order.states.states:
            bar = "█" * round(40 * counts[state] / total)
            self.stdout.write(f"  {label:<10} {counts[state]:>5} {bar}")

    def goes_on(self, order: Order) -> bool:
        return random.random() < (0.1 if order.status == "DELIVERED" else 0.9)

    def choose(self, targets: list[str]) -> str:
        """Prefer the happy path, which is declared first."""
        return targets[0] if random.random() < 0.85 else random.choice(targets)

    def explain(self, order: Order) -> dict[str, Any]:
        match order.states.current:
            case "PENDING":
                return {"amount": order.total, "method": random.choice(["card", "invoice", "wallet"])}
            case "PACKED":
                return {"carrier": random.choice(CARRIERS), "tracking": f"{random.randrange(10**8):08d}"}
            case _:
                return {}

    def progress(self, done: int, total: int, note: str) -> None:
        if not sys.stderr.isatty() and done != total:
            return
        filled = round(40 * done / total)
        self.stderr.write(f"\rDriving orders {'█' * filled}{'·' * (40 - filled)} {done}/{total}  {note}", ending="")
        self.stderr.flush()
        if done == total:
            self.stderr.write("")

    def show_history(self) -> None:
        order = Order.objects.order_by("-status_sequence", "-pk")[0]
        self.stdout.write(f"\nThe history of {order}, now {order.states.display}, newest first:\n")
        for record in order.states.history:
            facts = ", ".join(f"{name}={value}" for name, value in record.metadata.items())
            when = record.transitioned_at.strftime("%H:%M:%S.%f")[:-3]
            self.stdout.write(f"  {record.sequence}.  {when}  {record.from_status:>9} → {record.to_status:<9}  {facts}")

    def show_diagram(self) -> None:
        self.stdout.write("\nThe machine, as a Mermaid diagram (`manage.py statemachine_graph` draws more formats):\n")
        self.stdout.write(Order.states.diagram())

    def serve(self, port: int) -> None:
        port = free_port(port)
        self.stdout.write(f"The admin is at http://127.0.0.1:{port}/admin/  (user {USER}, password {PASSWORD})")
        self.stdout.write(f"  orders:       http://127.0.0.1:{port}/admin/shop/order/")
        self.stdout.write(f"  transitions:  http://127.0.0.1:{port}/admin/shop/orderstatetransition/")
        self.stdout.write("Stop with Ctrl-C.\n")
        self.stdout.flush()
        call_command("runserver", f"127.0.0.1:{port}", use_reloader=False, skip_checks=True, verbosity=0)


def free_port(wanted: int) -> int:
    """Return the port, or another one if something listens there already."""
    with socket.socket() as probe:
        try:
            probe.bind(("127.0.0.1", wanted))
        except OSError:
            probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port
