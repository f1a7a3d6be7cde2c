"""`manage.py demo`: a shop whose orders move, to look at."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import socket
import subprocess
import sys
import threading
from argparse import ArgumentParser
from collections import Counter
from collections.abc import Iterator
from decimal import Decimal
from typing import Any, Self

from django.contrib.auth import get_user_model
from django.core.management import call_command
from django.core.management.base import BaseCommand, CommandError
from django.db import connection, transaction
from django.db.models import Sum

from shop.models import Order
from shop.world import CARRIERS
from statemachine_fields.worker.models import RunStatistics

CUSTOMERS = ["Ada", "Alan", "Barbara", "Donald", "Edsger", "Frances", "Grace", "Ken", "Leslie", "Radia", "Tony"]
USER = PASSWORD = "admin"
#: Seconds between two new orders while the shop is open.
NEW_ORDER_EVERY = 1.5
#: What is shown of the run statistics.
COUNTS = ["claimed", "moved", "waited", "failed", "parked"]


class Command(BaseCommand):
    help = (
        "Create a shop, drive its orders through their states, then open it: orders come in, a worker moves them on, and "
        "the admin is served to look at them."
    )

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("--orders", type=int, default=300, metavar="N", help="how many to create (default: 300)")
        parser.add_argument("--port", type=int, default=8000, help="where to serve the admin (default: 8000)")
        parser.add_argument("--no-serve", action="store_true", help="serve no admin, and end when the worker does")
        parser.add_argument(
            "--run-for",
            type=float,
            metavar="SECONDS",
            help="close the shop after so long (default: never; with --no-serve, 15)",
        )

    def handle(self, *args: Any, **options: Any) -> None:
        if options["run_for"] is not None and options["run_for"] <= 0:
            raise CommandError("--run-for must be more than 0.")
        call_command("migrate", verbosity=0)
        self.ensure_superuser()
        RunStatistics.objects.all().delete()
        orders = self.create_orders(options["orders"])
        self.drive(orders)
        self.show_states()
        self.show_history()
        self.show_diagram()
        seconds = options["run_for"] or (15 if options["no_serve"] else None)
        with signals_raise(), new_orders(), Worker(seconds) as worker:
            if options["no_serve"]:
                self.say("The shop is open. This is what the worker says:\n")
                worker.wait()
            else:
                self.serve(options["port"], seconds)
        self.show_statistics()

    def ensure_superuser(self) -> None:
        users = get_user_model()._default_manager
        if not users.filter(username=USER).exists():
            users.create_superuser(USER, "admin@example.com", PASSWORD)

    def create_orders(self, count: int) -> list[Order]:
        if count < 1:
            raise CommandError("--orders must be at least 1.")
        return Order.objects.bulk_create(new_order() for _ in range(count))

    def drive(self, orders: list[Order]) -> None:
        """Move each order along until it is where it ends up, a few hundred moves in all."""
        moves = 0
        for done, order in enumerate(orders, start=1):
            with transaction.atomic():  # one disk flush for each order, not one for each move
                while (targets := self.possible(order)) and self.goes_on(order):
                    order.states.transition_to(self.choose(targets), metadata=self.explain(order))
                    moves += 1
            self.progress(done, len(orders), f"{moves} moves")

    def possible(self, order: Order) -> list[str]:
        return [state for state in order.states.get_valid_transitions() if order.states.can_transition_to(state)]

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

    def say(self, line: str) -> None:
        """Write at once, as the worker writes to the same place."""
        self.stdout.write(line)
        self.stdout.flush()

    def show_states(self) -> None:
        self.stdout.write("")
        total = Order.objects.count()
        counts = Counter(Order.objects.values_list("status", flat=True))
        for state, label in Order.states.states:
            bar = "█" * round(40 * counts[state] / total)
            self.stdout.write(f"  {label:<10} {counts[state]:>5} {bar}")

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

    def serve(self, port: int, seconds: float | None) -> None:
        port = free_port(port)
        self.stdout.write(f"The shop is open. Its admin is at http://127.0.0.1:{port}/admin/")
        self.stdout.write(f"  user {USER}, password {PASSWORD}")
        self.stdout.write(f"  orders, as they move:  http://127.0.0.1:{port}/admin/shop/order/")
        self.stdout.write(f"  how long they stay:    http://127.0.0.1:{port}/admin/shop/order/_machine/states/")
        self.stdout.write(f"  every transition:      http://127.0.0.1:{port}/admin/shop/orderstatetransition/")
        self.stdout.write(f"  what the worker did:   http://127.0.0.1:{port}/admin/statemachine_worker/runstatistics/")
        self.say("Stop with Ctrl-C. Below is what the worker says.\n")
        over = threading.Timer(seconds or 0, os.kill, (os.getpid(), signal.SIGTERM))
        over.daemon = True
        if seconds:
            over.start()
        with contextlib.suppress(SystemExit):  # by which it ends, on Ctrl-C too
            call_command("runserver", f"127.0.0.1:{port}", use_reloader=False, skip_checks=True, verbosity=0)
        over.cancel()

    def show_statistics(self) -> None:
        self.stdout.write("\nWhere the orders are now:")
        self.show_states()
        self.stdout.write("\nWhat the worker did, by the state it found an order in:\n")
        self.stdout.write(f"  {'':<10}" + "".join(f"{name:>9}" for name in COUNTS))
        labels = dict(Order.states.states)
        sums = RunStatistics.objects.values_list("state").annotate(*map(Sum, COUNTS))
        found: dict[str, list[int]] = {state: numbers for state, *numbers in sums}
        for state in [state for state in labels if state in found]:
            numbers = "".join(f"{number:>9}" for number in found[state])
            self.stdout.write(f"  {labels[state]:<10}{numbers}")
        parked = Order.states.parked()
        if parked:
            self.stdout.write(f"\n{len(parked)} parked, until somebody resumes them in the admin:\n")
        for order in parked[:5]:
            self.stdout.write(f"  {order}: {order.status_error}")  # type: ignore[attr-defined]


class Worker:
    """`manage.py statemachine_worker shop` as a child, which ends when we do."""

    def __init__(self, seconds: float | None) -> None:
        self.command = [sys.executable, sys.argv[0], "statemachine_worker", "shop", "--skip-checks"]
        if seconds:
            self.command += ["--run-for", str(seconds)]

    def __enter__(self) -> Self:
        # In a session of its own: Ctrl-C goes to everyone in ours, and a second signal would end it at once.
        self.process = subprocess.Popen(self.command, stdin=subprocess.DEVNULL, start_new_session=True)
        return self

    def __exit__(self, *exception: object) -> None:
        try:
            self.process.terminate()
            self.process.wait()
        except (KeyboardInterrupt, SystemExit):  # told again
            self.process.terminate()
            self.process.wait()

    def wait(self) -> None:
        with contextlib.suppress(KeyboardInterrupt, SystemExit):
            self.process.wait()


@contextlib.contextmanager
def signals_raise() -> Iterator[None]:
    """Raise SystemExit on signals that would end the process, so that it can stop its worker first."""

    def leave(number: int, frame: object) -> None:
        raise SystemExit

    numbers = [getattr(signal, name) for name in ("SIGTERM", "SIGHUP") if hasattr(signal, name)]
    before = {number: signal.signal(number, leave) for number in numbers}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextlib.contextmanager
def new_orders() -> Iterator[None]:
    """Let orders come in, from a thread."""
    closed = threading.Event()

    def trickle() -> None:
        while not closed.wait(random.uniform(0.5, 1.5) * NEW_ORDER_EVERY):
            new_order().save()
        connection.close()

    thread = threading.Thread(target=trickle, daemon=True)
    thread.start()
    try:
        yield
    finally:
        closed.set()
        thread.join()


def new_order() -> Order:
    return Order(customer=random.choice(CUSTOMERS), total=Decimal(random.randint(500, 50_000)).scaleb(-2))


def free_port(wanted: int) -> int:
    """Return the port, or another one if something listens there already."""
    with socket.socket() as probe:
        try:
            probe.bind(("127.0.0.1", wanted))
        except OSError:
            probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port
