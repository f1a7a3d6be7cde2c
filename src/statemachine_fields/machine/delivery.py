"""Deliver events to rows: written in the caller's transaction, and read by workers. Nothing here moves a row."""

from __future__ import annotations

import enum
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from itertools import islice
from typing import TYPE_CHECKING, Any

from django.core.exceptions import FieldDoesNotExist, ValidationError
from django.db import connections, models, router, transaction

from statemachine_fields.db.dialect import dialect_for
from statemachine_fields.db.inbox import DeliveredEvent, Receipt, Receivers
from statemachine_fields.db.rows import all_rows
from statemachine_fields.exceptions import EventRefused, RowMissing
from statemachine_fields.machine.context import read_json
from statemachine_fields.machine.events import DEDUP_LENGTH
from statemachine_fields.machine.ids import uuid7, uuid7_many
from statemachine_fields.schedule.policy import plain
from statemachine_fields.schedule.wakeups import wake

if TYPE_CHECKING:
    from statemachine_fields.machine.binding import Binding

#: What an entry of `bulk_deliver()` may have.
ENTRY = ("key", "name", "payload", "dedup_key")


class Delivery(enum.StrEnum):
    """What became of an event."""

    #: The row waits for it, and is due now.
    WOKEN = "woken"
    #: It is kept for when the row waits for it, or is let go by the worker that runs it, or is tried again.
    KEPT = "kept"
    #: The row has got one with the same `dedup_key` before.
    DUPLICATE = "duplicate"
    #: The row has ended, so that it will never wait for it. Of `bulk_deliver()`; `deliver()` raises `EventRefused`.
    REFUSED = "refused"
    #: There is no such row. Of `bulk_deliver()`; `deliver()` raises `RowMissing`.
    MISSING = "missing"


class Deliverer:
    """Delivers events to the rows of one machine in one database."""

    def __init__(self, bound: Binding[Any], using: str, model: type[models.Model] | None = None) -> None:
        """Deliver to rows of one machine.

        :param model: whose rows are meant where they are known by their fields, if not the machine's: a multi-table child.
        """
        self.events = bound.require_events()
        self.bound = bound
        self.model: Any = model or bound.model
        self.using = using
        self.connection = connections[using]
        self.dialect = dialect_for(self.connection)

    @property
    def receivers(self) -> Receivers:
        return Receivers(self.bound.graph.terminal_states, self.bound.awaited_names)

    def deliver(self, key: Any, name: str, payload: Any, dedup_key: str | None) -> Delivery:
        """Deliver one event, or raise and write nothing."""
        name = self._read_name(name)
        event = DeliveredEvent(uuid7(), key, name, read_json(payload, "payload"), read_dedup_key(dedup_key))
        if self.dialect.is_one_statement:
            receipt = self.dialect.deliver(self.connection, self.bound.table, event, self.receivers)
        else:
            with transaction.atomic(using=self.using, savepoint=False):
                receipt = self.dialect.deliver(self.connection, self.bound.table, event, self.receivers)
        label = f"{self.bound.model._meta.label} pk={key!r}"
        if receipt.status is None:
            raise RowMissing(label, saved=True)
        delivery = self._judge(event, receipt)
        if delivery is Delivery.REFUSED:
            raise EventRefused(label, name, receipt.status)
        self._wake([receipt])
        return delivery

    def _judge(self, event: DeliveredEvent, receipt: Receipt) -> Delivery:
        if receipt.status is None:
            return Delivery.MISSING
        if receipt.number is not None:
            return Delivery.WOKEN if receipt.is_woken else Delivery.KEPT
        if receipt.status not in self.bound.graph.terminal_states:
            return Delivery.DUPLICATE
        # A webhook is repeated days later, when the row has long ended, and its sender wants to hear that all is well. It is asked
        # in a statement of its own: the one before may have waited for the row, and not see what was committed meanwhile.
        known = all_rows(self.events, self.using).filter(instance_id=event.key, dedup_key=event.dedup_key)
        is_known = event.dedup_key is not None and known.exists()
        return Delivery.DUPLICATE if is_known else Delivery.REFUSED

    def _wake(self, receipts: Sequence[Receipt]) -> None:
        for status in dict.fromkeys(each.status for each in receipts if each.is_woken):
            wake(self.bound, self.connection, status or "")

    def _read_name(self, name: str) -> str:
        names = self.bound.event_names
        if not isinstance(name, str):
            raise TypeError(f"The name of an event is a text, got {name!r}. Nothing was delivered.")
        if plain(name) not in names:
            raise EventRefused(str(self.bound), plain(name), None, names)
        return plain(name)

    # Many at once.

    def deliver_all(self, entries: Iterable[Mapping[str, Any]], by: str, batch_size: int) -> list[Delivery]:
        """Deliver events batch by batch, each one transaction, and return what became of each, in their order."""
        if by == "pk" and self.model is not self.bound.model:  # which is not that of the row that has the machine
            by = self.model._meta.pk.attname
        found: list[Delivery] = []
        remaining = iter(entries)
        while batch := list(islice(remaining, batch_size)):
            found += self._deliver_batch([self._read_entry(entry, by) for entry in batch], by)
        return found

    def _read_entry(self, entry: Mapping[str, Any], by: str) -> DeliveredEvent:
        if not isinstance(entry, Mapping) or not {"key", "name"} <= {*entry} <= {*ENTRY}:
            raise TypeError(
                f"Each event is a dict with key, name and, if it has them, payload and dedup_key, got {entry!r}."
            )
        name, payload = self._read_name(entry["name"]), read_json(entry.get("payload"), "payload")
        key = self._read_key(by, entry["key"])
        return DeliveredEvent(uuid7(), key, name, payload, read_dedup_key(entry.get("dedup_key")))

    def _read_key(self, by: str, key: Any) -> Any:
        """Return what a row is known by as it is read from the database: others send a UUID, or a number, as text. None for what no row
        can have."""
        # What is no value of the field, or is of another model's, is for the query to judge.
        with suppress(FieldDoesNotExist, ValidationError, AttributeError):
            field = self.bound.model._meta.pk if by == "pk" else self.model._meta.get_field(by)
            value = key if isinstance(key, models.Model) else field.to_python(key)
            return value if self._has_room_for(value, field) else None
        return key

    def _has_room_for(self, value: Any, field: Any) -> bool:
        """Say whether a number is none that is too large for its column: the database would refuse all that is asked with it."""
        while field.is_relation:
            field = field.target_field
        if not isinstance(value, int) or not isinstance(field, models.IntegerField):
            return True
        least, most = self.connection.ops.integer_field_range(field.get_internal_type())
        return (least is None or value >= least) and (most is None or value <= most)

    def _deliver_batch(self, events: list[DeliveredEvent], by: str) -> list[Delivery]:
        if by != "pk":
            events = self._with_keys(events, by)
        new = [event._replace(id=each) for event, each in zip(events, uuid7_many(len(events)), strict=True)]
        # The database is asked about each once: what a batch has twice is a duplicate of the first.
        firsts = {_identity(event, place): place for place, event in reversed([*enumerate(new)])}
        sent = [place for place in sorted(firsts.values()) if new[place].key is not None]
        receipts: dict[int, Receipt] = {}
        if sent:
            with transaction.atomic(using=self.using, savepoint=False):
                answers = self.dialect.deliver_many(
                    self.connection, self.bound.table, [new[place] for place in sent], self.receivers
                )
                receipts = dict(zip(sent, answers, strict=True))
                self._wake(answers)
        return [self._answer(new, firsts, receipts, place) for place in range(len(new))]

    def _answer(
        self, events: list[DeliveredEvent], firsts: Mapping[Any, int], receipts: Mapping[int, Receipt], place: int
    ) -> Delivery:
        first = firsts[_identity(events[place], place)]
        delivery = self._judge(events[place], receipts.get(first, Receipt(None, None, False)))
        is_repeated = first != place and delivery in (Delivery.WOKEN, Delivery.KEPT)
        return Delivery.DUPLICATE if is_repeated else delivery

    def _with_keys(self, events: list[DeliveredEvent], by: str) -> list[DeliveredEvent]:
        """Return events with the keys of rows in place of what these are known by; None where there is no such row."""
        wanted = dict.fromkeys(event.key for event in events)
        rows = all_rows(self.model, self.using)
        keys = self._keys_by(rows, by, wanted)
        several = [value for value in wanted if len(keys.get(value, ())) > 1]
        if several and (holders := self._holders(rows, [by])) is not None:
            keys |= {value: found for value, found in self._keys_by(holders, by, several).items() if len(found) == 1}
        for value in several:
            if len(keys[value]) > 1:
                raise self._too_many({by: value})
        return [event._replace(key=next(iter(keys.get(event.key, ())), None)) for event in events]

    def _keys_by(self, rows: models.QuerySet[Any], by: str, wanted: Collection[Any]) -> dict[Any, list[Any]]:
        """Return the keys of those rows that have a value which is wanted, by that value."""
        name = self.bound.key_name
        keys: dict[Any, list[Any]] = {}
        for value, key in rows.filter(**{f"{by}__in": [*wanted]}).values_list(by, name):
            keys.setdefault(value, []).append(key)
        if not keys.keys() <= {*wanted}:  # some are equal for the database alone, as text in another case may be
            for value in {*wanted} - keys.keys():
                keys[value] = list(rows.filter(**{by: value}).values_list(name, flat=True)[:2])
        return keys

    def find(self, where: Mapping[str, Any]) -> Any:
        """Return the key of the one row that fits, or raise. Of several that had a live key one after the other, it is the one that has
        it now."""
        if not isinstance(where, Mapping) or not where:
            raise TypeError(f"where must be a dict of what the row is known by, got {where!r}.")
        rows, name = all_rows(self.model, self.using).filter(**where), self.bound.key_name
        keys = list(rows.values_list(name, flat=True)[:2])
        if not keys:
            raise RowMissing(f"{self.model._meta.label} with {_listed(where)}", saved=None)
        if len(keys) > 1 and (holders := self._holders(rows, where)) is not None and None not in where.values():
            keys = list(holders.values_list(name, flat=True)[:2])
        if len(keys) != 1:
            raise self._too_many(where)
        return keys[0]

    def _holders(self, rows: models.QuerySet[Any], names: Iterable[str]) -> models.QuerySet[Any] | None:
        """Return those of several rows that have their live key to themselves, if it is by that key that the rows are known: others
        had it before them."""
        key = self.bound.key
        return key.kept_by(rows) if key is not None and key.is_named_by(names) else None

    def _too_many(self, where: Mapping[str, Any]) -> Exception:
        several: type[Exception] = self.model.MultipleObjectsReturned
        return several(
            f"Several rows of {self.model._meta.label} have {_listed(where)}, and an event is for one. Nothing was "
            "delivered. Say more in `where`, or deliver to each of them with bulk_deliver()."
        )


def _identity(event: DeliveredEvent, place: int) -> tuple[Any, ...]:
    """Return what two events have in common of which one is a duplicate; else its place, which no other has."""
    return (event.key, event.dedup_key) if event.dedup_key is not None else (place,)


def _listed(where: Mapping[str, Any]) -> str:
    return " and ".join(f"{name}={value!r}" for name, value in where.items())


def read_dedup_key(dedup_key: str | None) -> str | None:
    if dedup_key is None:
        return None
    if not isinstance(dedup_key, str):
        raise TypeError(f"dedup_key must be a text, got {dedup_key!r}. Nothing was delivered.")
    is_text = dedup_key.encode(errors="ignore").decode() == dedup_key  # half of a surrogate pair is none
    if not 0 < len(dedup_key) <= DEDUP_LENGTH or "\x00" in dedup_key or not is_text:
        raise ValueError(f"dedup_key must be a text of 1 to {DEDUP_LENGTH} characters and no NUL, got {dedup_key!r}.")
    return dedup_key


def events_of(bound: Binding[Any], instance: models.Model) -> models.QuerySet[Any]:
    """Return the events of a row, in the order in which they came."""
    events = bound.require_events()
    if instance.pk is None:
        return all_rows(events).none()
    rows = all_rows(events, router.db_for_read(events, instance=instance))
    return rows.filter(instance_id=bound.key_of(instance)).order_by("number")
