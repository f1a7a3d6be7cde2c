"""`manage.py demo`: a shop whose orders move, to look at."""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import threading
from argparse import ArgumentParser
from collections import Counter, defaultdict
from collections.abc import Mapping
from typing import Any

from django.contrib.auth import get_user_model
from django.contrib.auth.models import AbstractBaseUser
from django.contrib.staticfiles.handlers import StaticFilesHandler
from django.core.handlers.wsgi import WSGIHandler
from django.core.management import call_command
from django.core.management.base import BaseCommand, CommandError
from django.core.servers.basehttp import run
from django.utils.timesince import timesince

from shop import history
from shop.models import Order, OrderStateTransition, Parcel
from shop.running import DONE, Worker, drop_done, free_port, open_to_others, signals_raise
from statemachine_fields import BoundMachine
from statemachine_fields.worker.models import RunStatistics

USER = PASSWORD = "admin"
#: What is shown of the run statistics.
KINDS = ["claimed", "moved", "waited", "failed", "parked"]
#: What there is to see below /admin/.
PAGES = {
    "orders, as they move": "shop/order/",
    "the parcels they wait for": "shop/parcel/",
    "how long they stay": "shop/order/_machine/states/",
    "every transition": "shop/orderstatetransition/",
    "what the bank has said": "shop/orderstateevent/",
    "every try that failed": "shop/parcelstateattempt/",
    "what the worker did": "statemachine_worker/runstatistics/",
}
SUGGESTIONS = [
    "Deliver an event: open a pending order, and say in the place of the bank that it is paid, or refused.",
    "Open a shipped order with several parcels, and return it: those on the road are recalled.",
    "Find a parked parcel, see what was tried and why its order waits, and resume it.",
]


class Command(BaseCommand):
    help = (
        "Open a shop that has been there for some weeks: orders come in, are paid and shipped in parcels, a worker moves them "
        "on, and the admin is served to look at them. What you leave is found again at the next start. Requests are shown with -v 2."
    )

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument(
            "--orders",
            type=int,
            default=500,
            metavar="N",
            help="how many to keep, those done longest go (default: 500)",
        )
        parser.add_argument("--fresh", action="store_true", help="delete what an earlier run left, and begin anew")
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
        if options["orders"] < 1:
            raise CommandError("--orders must be at least 1.")
        seconds = options["run_for"] or (15 if options["no_serve"] else None)
        with contextlib.suppress(KeyboardInterrupt):
            self.prepare(options["orders"], options["fresh"])
            self.show_states()
            self.show_history()
            with (
                signals_raise(),
                open_to_others(options["orders"], self.say_for),
                Worker(seconds, self.say_for) as worker,
            ):
                if options["no_serve"]:
                    self.say("\nThe shop is open. This is what the worker, the bank and the carriers say:\n\n")
                    worker.wait()
                else:
                    self.serve(options["port"], seconds, shows_requests=options["verbosity"] > 1)
            self.show_statistics()

    def prepare(self, wanted: int, is_fresh: bool) -> None:
        """Have as many orders as are wanted, with a past. What was found is kept, as far as there is room."""
        call_command("migrate", verbosity=0)
        user = self.ensure_superuser()
        RunStatistics.objects.all().delete()
        if is_fresh:
            Order.objects.all().delete()
        if found := Order.objects.count():
            done = Order.objects.filter(status__in=DONE).count()
            last = OrderStateTransition.objects.first()
            since = f", the last of which moved {timesince(last.transitioned_at)} ago" if last else ""
            self.say(f"Found {found} orders{since}: {found - done} on their way, {done} done.")
            if not Parcel.objects.exists():
                self.say(
                    "They are of a time when the shop had no parcels. Begin anew with --fresh to see some from the start."
                )
        if dropped := drop_done(wanted):
            self.say(f"Dropped {dropped} that have been done for longest.")
        if (missing := wanted - Order.objects.count()) > 0:
            history.write(missing, people=user)
            self.say(f"Made {missing} orders of the last {history.WEEKS} weeks, with their histories.")

    def ensure_superuser(self) -> AbstractBaseUser:
        users = get_user_model()._default_manager
        return users.filter(username=USER).first() or users.create_superuser(USER, "admin@example.com", PASSWORD)

    def say(self, line: str) -> None:
        """Write at once, as others write to the same place."""
        self.stdout.write(line)
        self.stdout.flush()

    def say_for(self, who: str, line: str) -> None:
        """Write a line so that it is seen whose it is, and whether it should worry anybody."""
        if " WARNING " in line:
            line = self.style.WARNING(line)
        elif who == "worker" and " INFO " not in line:  # an error, or its traceback
            line = self.style.ERROR(line)
        self.say(self.prefix(who) + line)

    def prefix(self, who: str) -> str:
        return self.style.MIGRATE_HEADING(f"{who:<6} │ ")

    def show_states(self) -> None:
        for name, machine in (("orders", Order.states), ("parcels", Parcel.states)):
            counts = Counter(machine.model._default_manager.values_list("status", flat=True))
            self.stdout.write(f"\n  {counts.total()} {name}")
            for state, label in machine.states:
                bar = "█" * round(40 * counts[state] / (counts.total() or 1))
                self.stdout.write(f"  {label:<11} {counts[state]:>5} {bar}".rstrip())

    def show_history(self) -> None:
        order = Order.objects.order_by("-status_sequence", "-pk")[0]
        self.stdout.write(f"\nThe history of {order}, now {order.states.display}, newest first:\n")
        for record in order.states.history:
            facts = ", ".join(f"{name}={said(value)}" for name, value in record.metadata.items() if name != "actor")
            when = record.transitioned_at.strftime("%d %b %H:%M")
            self.stdout.write(f"  {record.sequence}.  {when}  {record.from_status:>9} → {record.to_status:<9}  {facts}")

    def serve(self, port: int, seconds: float | None, *, shows_requests: bool) -> None:
        wanted, port = port, free_port(port)
        self.log_requests(logging.INFO if shows_requests else logging.ERROR)
        if wanted and port != wanted:
            self.stdout.write(f"\nSomething listens on port {wanted} already, so this is another one.")
        self.stdout.write(f"\nThe shop is open. Its admin is at http://127.0.0.1:{port}/admin/")
        self.stdout.write(f"  user {USER}, password {PASSWORD}")
        for what, page in PAGES.items():
            self.stdout.write(f"  {what + ':':<27}http://127.0.0.1:{port}/admin/{page}")
        self.stdout.write("Try this:")
        for suggestion in SUGGESTIONS:
            self.stdout.write(f"  - {suggestion}")
        self.stdout.write("Stop with Ctrl-C. Below is what the worker, the bank and the carriers say.")
        self.say("")
        over = threading.Timer(seconds or 0, os.kill, (os.getpid(), signal.SIGTERM))
        over.daemon = True
        if seconds:
            over.start()
        with contextlib.suppress(KeyboardInterrupt, SystemExit):
            # What `runserver` runs. The command itself would set up the project's logging once more, and talk.
            run("127.0.0.1", port, StaticFilesHandler(WSGIHandler()), threading=True)
        over.cancel()

    def log_requests(self, level: int) -> None:
        """Show requests of this level apart from what the worker says."""
        shown = logging.StreamHandler(self.stdout)
        shown.setFormatter(logging.Formatter(self.prefix("web") + "%(asctime)s %(message)s", "%H:%M:%S"))
        for name in ("django.server", "django.request"):
            logger = logging.getLogger(name)
            logger.handlers[:] = [shown]
            logger.propagate = False
            logger.setLevel(level)

    def show_statistics(self) -> None:
        self.stdout.write("\nWhere everything is now:")
        self.show_states()
        self.stdout.write("\nWhat the worker did, by the state it found a row in:\n")
        self.stdout.write(f"  {'':<19}" + "".join(f"{name:>9}" for name in KINDS))
        found: defaultdict[tuple[str, str], Counter[str]] = defaultdict(Counter)
        for hour in RunStatistics.objects.by_hour():
            found[hour.machine, hour.state] += hour.counts
        for machine in (Order.states, Parcel.states):
            self.show_counts(machine, found)
        for machine in (Order.states, Parcel.states):
            self.show_parked(machine)

    def show_counts(self, machine: BoundMachine[Any], found: Mapping[tuple[str, str], Counter[str]]) -> None:
        for state, label in machine.states:
            if counts := found.get((str(machine), state)):
                numbers = "".join(f"{counts[kind]:>9}" for kind in KINDS)
                self.stdout.write(f"  {machine.model.__name__ + ', ' + str(label).lower():<19}{numbers}")

    def show_parked(self, machine: BoundMachine[Any]) -> None:
        parked = machine.parked()
        if parked:
            what = machine.model._meta.verbose_name if len(parked) == 1 else machine.model._meta.verbose_name_plural
            self.stdout.write(f"\n{len(parked)} {what} parked, until somebody resumes in the admin what is to go on:\n")
        for row in parked[:5]:
            self.stdout.write(f"  {row}: {row.status_error}")


def said(value: Any) -> str:
    """Return a fact of a record for a line of text."""
    return "/".join(f"{number} {name}" for name, number in value.items()) if isinstance(value, dict) else str(value)
