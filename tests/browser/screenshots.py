"""The pictures of the documentation, of a shop whose orders and parcels are always the same.

SMF_DB=sqlite .venv/bin/pytest tests/browser/screenshots.py

No test by its name, so that the suite leaves it alone. It writes to docs/_static/, or to the directory that SMF_PICTURES names.
"""

from __future__ import annotations

import datetime as dt
import os
import random
import uuid
from decimal import Decimal
from pathlib import Path

import pytest
from django.contrib.auth import get_user_model

from shop.models import Order, OrderStateEvent, OrderStateTransition, Parcel
from statemachine_fields.machine.ids import uuid7_floor
from tests.browser.chromium import expect
from tests.browser.orders import TAKE_BACK
from tests.browser.pages import address, choose, row_page
from tests.worker.rows import set_clock

PICTURES = Path(os.environ.get("SMF_PICTURES") or Path(__file__).parents[2] / "docs" / "_static")
NOW = dt.datetime(2026, 11, 16, 14, 30, tzinfo=dt.UTC)
FIRST_ORDER = 1001
NAMES = """Ada Lovelace, Alan Turing, Barbara Liskov, Donald Knuth, Edsger Dijkstra, Frances Allen, Grace Hopper,
    Hedy Lamarr, Ken Thompson, Leslie Lamport, Margaret Hamilton, Radia Perlman, Tony Hoare""".replace("\n", " ")
CUSTOMERS = [" ".join(name.split()) for name in NAMES.split(",")]

#: How long an order stays in a state: about so many hours.
HOURS = {"PENDING": 2.0, "PAID": 5.0, "PACKED": 9.0, "SHIPPED": 44.0, "DELIVERED": 60.0}
WRONG = "The address has no house number."
BUSY = "GLS takes no bookings at the moment."


class Shop:
    """Orders of the last ten days, and what happened to them."""

    def __init__(self):
        self.dice = random.Random(11)
        self.clerk = get_user_model().objects.create_user("lena", first_name="Lena", last_name="Fischer", is_staff=True)
        self.records, self.events = [], []
        self.rows = [self.order(number) for number in range(220)]
        Order.objects.bulk_create(self.rows)
        for row in self.rows:
            self.live(row)
        OrderStateTransition.objects.bulk_create(self.records)
        OrderStateEvent.objects.bulk_create(self.events)

    def order(self, number):
        total = Decimal(self.dice.randrange(900, 24000)) / 100
        return Order(pk=FIRST_ORDER + number, customer=self.dice.choice(CUSTOMERS), total=total)

    def live(self, row):
        """Let an order go its way until now, and write down where it has come to."""
        entered = NOW - dt.timedelta(hours=10 * 24 * (1 - (row.pk - FIRST_ORDER + 0.5) / len(self.rows)))
        state, sequence, is_stuck = "PENDING", 0, row.pk % 37 == 5
        Order.objects.filter(pk=row.pk).update(created_at=entered)
        while target := self.next_state(row, state):
            stay = dt.timedelta(hours=HOURS[state] * self.dice.lognormvariate(0, 0.6))
            if entered + stay > NOW or (is_stuck and state == "PACKED"):
                break
            sequence, entered = sequence + 1, entered + stay
            self.records.append(self.record(row, sequence, state, target, entered))
            if "event" in self.records[-1].metadata:
                self.events.append(self.payment(row, entered))
            state = target
        inbox = sum(event.instance_id == row.pk for event in self.events[-1:])
        clock = self.clock(state, entered, is_stuck)
        set_clock(
            row,
            status=state,
            sequence=sequence,
            changed_at=entered,
            claimed_at=entered,
            attempts=sequence,
            inbox=inbox,
            **clock,
        )
        if any(record.to_status == "SHIPPED" for record in self.records[-sequence:] if sequence):
            self.ship(row, state, entered)

    def payment(self, row, time):
        """Return what the bank has said of an order."""
        return OrderStateEvent(
            id=uuid.UUID(int=uuid7_floor(time.timestamp()).int + len(self.events)),
            instance=row,
            number=1,
            name="paid",
            payload={"amount": str(row.total), "method": self.dice.choice(["card", "wallet"])},
            dedup_key=f"evt_{self.dice.getrandbits(40):010x}",
            delivered_at=time,
            taken_by=1,
        )

    def ship(self, row, state, time):
        """Let an order have parcels that explain where it is."""
        ends = {"SHIPPED": ["ON_THE_ROAD", "DELIVERED", "READY"], "LOST": ["LOST", "RECALLED", "DELIVERED"]}
        for place in range(parcels_of(row)):
            status = ends.get(state, ["DELIVERED"] * 3)[place]
            carrier, number = self.dice.choice(["DHL", "GLS", "UPS"]), str(self.dice.randrange(10**7, 10**8))
            booked = {} if status == "READY" else {"carrier": carrier, "tracking": number}
            parcel = Parcel.objects.create(order=row, weight=self.dice.randrange(3, 120) / 10, status=status, **booked)
            is_parked = {"next_at": None, "failures": 3, "attempts": 3, "error": BUSY} if status == "READY" else {}
            set_clock(parcel, changed_at=time, **is_parked)

    def next_state(self, row, state):
        chance = self.dice.random()
        match state:
            case "PENDING" | "PAID" if chance < 0.06:
                return "CANCELLED"
            case "SHIPPED" | "DELIVERED" if chance < 0.08 and row.total >= 20:
                return "RETURNED"
            case "SHIPPED" if chance > 0.97:
                return "LOST"
        return {"PENDING": "PAID", "PAID": "PACKED", "PACKED": "SHIPPED", "SHIPPED": "DELIVERED"}.get(state)

    def record(self, row, sequence, source, target, time):
        key = uuid.UUID(int=uuid7_floor(time.timestamp()).int + len(self.records))
        return OrderStateTransition(
            id=key,
            instance=row,
            sequence=sequence,
            from_status=source,
            to_status=target,
            transitioned_at=time,
            metadata=self.facts(row, target),
        )

    def facts(self, row, target):
        person = {"model": "auth.User", "pk": self.clerk.pk, "text": "lena"}
        match target:
            case "PAID" if self.dice.random() < 0.2:
                return {"actor": person, "note": "The bank transfer has arrived.", "amount": str(row.total)}
            case "PAID":
                return {"event": "paid"}
            case "SHIPPED":
                return {"parcels": parcels_of(row)}
            case "DELIVERED":
                return {"children": {"DELIVERED": parcels_of(row)}}
            case "LOST":
                return {"children": {"LOST": 1}}
            case "CANCELLED":
                return {"actor": person, "note": "The customer called."}
            case "RETURNED":
                return {"actor": person, "reason": "damaged", "remark": "The box was crushed on one side."}
        return {}

    def clock(self, state, entered, is_stuck):
        if is_stuck and state == "PACKED":
            return {"next_at": None, "error": WRONG}
        if state == "PENDING":
            return {"next_at": entered + dt.timedelta(days=2)}
        if state in ("PAID", "PACKED"):
            return {"next_at": NOW + dt.timedelta(seconds=self.dice.randrange(5, 600))}
        return {"next_at": None}

    def all(self, state, **facts):
        """Return orders in a state, who came last first."""
        return Order.objects.filter(status=state, **facts).order_by("-status_changed_at", "-pk")

    def latest(self, state, **facts):
        return self.all(state, **facts).first()


def parcels_of(row):
    """Return how many parcels an order makes."""
    return 1 + row.pk % 3


@pytest.fixture
def shop(transactional_db, monkeypatch):
    monkeypatch.setattr("django.utils.timezone.now", lambda: NOW)
    return Shop()


@pytest.fixture
def user(shop):
    return get_user_model().objects.create_superuser("grace", first_name="Grace")


@pytest.fixture
def look(visit, user):
    """A function that opens a window for a picture: without what the site has around our pages."""

    def look(**options):
        page = visit(user, **{"device_scale_factor": 1.5, **options})
        page.add_init_script("if (location.host) localStorage.setItem('django.admin.navSidebarIsOpen', 'false')")
        return page

    return look


def shoot(page, name, bottom):
    """Take a picture from the top down to an element."""
    box = page.locator(bottom).last.bounding_box()
    area = {"x": 0, "y": 0, "width": page.viewport_size["width"], "height": box["y"] + box["height"] + 16}
    page.screenshot(path=PICTURES / f"{name}.png", full_page=True, clip=area, animations="disabled")


def test_list(look):
    page = look()
    page.goto(address(Order, "changelist"))
    shoot(page, "admin-list", "#result_list tbody tr:nth-child(8)")


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_row(look, shop, scheme):
    row = next(row for row in shop.all("SHIPPED", total__lt=20) if parcels_of(row) > 1)
    page = look(color_scheme=scheme)
    page.goto(row_page(row))
    shoot(page, "admin-row" if scheme == "light" else "admin-row-dark", ".smf-panel")


def test_move(look, shop):
    page = look()
    page.goto(row_page(shop.latest("SHIPPED", total__gte=20)))
    page.get_by_role("button", name=TAKE_BACK).click()
    page.get_by_label("Remark").fill("The box was crushed on one side.")
    page.get_by_label("Remark").blur()
    shoot(page, "admin-move", ".submit-row")


def test_bulk(look):
    page = look()
    page.goto(address(Order, "changelist"))
    page.locator("#action-toggle").check()
    choose(page, "Move to Returned")
    expect(page.locator(".smf-preview")).to_be_visible()
    shoot(page, "admin-bulk", ".submit-row")


def test_story(look, shop):
    row = shop.latest("RETURNED")
    page = look()
    page.goto(address(row, "story", row.pk, "states"))
    shoot(page, "admin-story", ".smf-panel")


def test_machine(look):
    page = look()
    page.goto(address(Order, "machine", "states"))
    shoot(page, "admin-machine", "[aria-labelledby=smf-stays-title]")
