"""Claim a batch of due rows and load them. What cannot be claimed is set aside, and its neighbours go on."""

from __future__ import annotations

import logging
import threading
import time
from collections import defaultdict, deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import cache
from operator import itemgetter
from typing import Any

from django.db import DatabaseError, models
from django.db.models.base import ModelState
from django.db.models.signals import post_init, pre_init

from statemachine_fields.db.claims import Claimed, Left, Wanted
from statemachine_fields.db.dialect import is_connection_error
from statemachine_fields.db.own import Limits
from statemachine_fields.db.rows import all_rows
from statemachine_fields.machine.initial_records import begin_after_kept
from statemachine_fields.machine.listeners import is_heard, is_made_by_django, is_made_plainly
from statemachine_fields.signals import lease_recovered, leases_claimed
from statemachine_fields.worker.connections import Backoff
from statemachine_fields.worker.digest import Digest, cause_of
from statemachine_fields.worker.errors import described
from statemachine_fields.worker.lease import Lane, Lease, now, row_fields, shown
from statemachine_fields.worker.reporting import send
from statemachine_fields.worker.waits import find_out
from statemachine_fields.worker.writing import is_in_the_way, is_lost_statement

logger = logging.getLogger("statemachine_fields.worker")


#: What a lease says of the row, in the order of its fields.
LEASED = ("status", "key", "lease_token", "sequence", "failures", "crashes", "error")

#: How many rows are set aside by themselves. If there are more, those that were set aside first are tried again.
MOST_ASIDE = 1000


class Claimer:
    """Claims on behalf of one worker process."""

    def __init__(
        self, owner: str, lease_seconds: float, digest: Digest | None = None, stopping: threading.Event | None = None
    ) -> None:
        self.owner = owner
        self.lease_seconds = lease_seconds
        self.digest = digest or Digest(logger)
        self.stopping = stopping or threading.Event()
        #: Rows that cannot be claimed, and when to try again.
        self.aside: defaultdict[Lane, dict[Any, Backoff]] = defaultdict(dict)

    def claim(self, lane: Lane, limit: int, *, suspects: bool = False) -> list[Lease]:
        """Lease up to so many due rows, in one statement, the most urgent first.

        :param suspects: take rows that a worker may have died of, in place of those that it cannot have: first those that
            were left behind once, and one at a time those that were left again.
        """
        if not suspects:
            return self.take(lane, self.wanted(lane, limit))
        lane.recover(Left())
        return self.take(lane, self.wanted(lane, limit, crashes=1)) or self.take(lane, self.wanted(lane, 1, crashes=2))

    def wanted(self, lane: Lane, limit: int, *, crashes: int = 0, aside: Sequence[Any] = ()) -> Wanted:
        """Say which rows to claim."""
        return Wanted(
            states=lane.states,
            priorities=lane.priorities,
            limit=limit,
            owner=self.owner,
            seconds=self.lease_seconds,
            crashes=crashes,
            fields=lane.fields,
            aside=aside,
        )

    def take(self, lane: Lane, wanted: Wanted) -> list[Lease]:
        """Lease rows and load them."""
        asked_at = now()  # before the database counts, so that ours ends first
        rows = lane.claim(wanted)
        if not rows:
            return []
        leases = self.load(lane, rows, asked_at + self.lease_seconds)
        if lane.bound.keeps_history:
            self._begin(lane, [lease for lease in leases if not lease.sequence])
        self.report(lane, leases)
        return leases

    def _begin(self, lane: Lane, leases: list[Lease]) -> None:
        """Let those rows begin that nobody saw being made and whose key has the history of another."""
        begun = begin_after_kept(lane.bound, [lease.key for lease in leases], lane.using)
        for lease in leases:
            if lease.key in begun:
                lease.sequence = begun[lease.key]
                if lease.instance is not None:
                    vars(lease.instance)[lane.bound.names.sequence] = lease.sequence

    def take_around(self, lane: Lane, limit: int, *, crashes: int = 0) -> Iterator[list[Lease]]:
        """Lease rows, all at once if that is possible, and without those that cannot be claimed. Each part is to be handed on
        before the next is asked for, which may raise."""
        wanted = self.wanted(lane, limit, crashes=crashes, aside=tuple(self.aside[lane]))
        try:
            yield self.take(lane, wanted)
        except DatabaseError as error:
            if is_lost_statement(lane, error) or is_connection_error(error):
                raise
            yield from self._isolate(lane, wanted, error)

    def _isolate(self, lane: Lane, wanted: Wanted, error: BaseException) -> Iterator[list[Lease]]:
        """Claim in smaller and smaller parts what cannot be claimed together, and set aside the rows that cannot be claimed
        alone. It ends after a while: the rest is for the next time."""
        keys = lane.candidates(wanted)
        parts = deque([keys[: len(keys) // 2], keys[len(keys) // 2 :]] if len(keys) > 1 else [keys])
        until = time.monotonic() + Limits.of_lease(self.lease_seconds).statement
        has_some = False
        bad: list[tuple[Any, BaseException]] = []
        while parts and time.monotonic() < until and not self.stopping.is_set():
            part = parts.popleft()
            if not part:
                continue
            try:
                leases = self.take(lane, replace(wanted, keys=part, aside=()))
            except DatabaseError as problem:
                if is_connection_error(problem):
                    raise
                if len(part) > 1:
                    parts.extendleft([part[len(part) // 2 :], part[: len(part) // 2]])
                else:
                    bad.append((part[0], problem))
            else:
                has_some = has_some or bool(leases)
                yield leases
        if not has_some and (not bad or (len(keys) > 1 and all(is_in_the_way(lane, cause) for _key, cause in bad))):
            raise error  # it is not for some rows that nothing can be claimed
        for key, cause in bad:
            self._set_aside(lane, key, cause)

    def _set_aside(self, lane: Lane, key: Any, error: BaseException) -> None:
        aside = self.aside[lane]
        aside.setdefault(key, Backoff(most=self.lease_seconds, first=1.0)).failed()
        if len(aside) > MOST_ASIDE:
            del aside[next(iter(aside))]
        text = "%s pk=%s cannot be claimed and is set aside, to be tried again later: %s"
        values = lane.bound.model._meta.label, shown(key), described(error).strip()
        fields = row_fields(lane, key) | {"error": described(error)}
        self.digest.log(("aside", str(lane), cause_of(error)), logging.WARNING, text, *values, fields=fields)

    def take_aside(self, lane: Lane) -> Iterator[list[Lease]]:
        """Try rows again that were set aside, each by itself."""
        for key, backoff in list(self.aside[lane].items()):
            if self.stopping.is_set():
                return
            if not backoff.is_over:
                continue
            try:
                leases = self.take(lane, replace(self.wanted(lane, 1), keys=[key]))
            except DatabaseError as error:
                if is_connection_error(error):
                    raise
                self._set_aside(lane, key, error)
            else:
                yield leases
                self.aside[lane].pop(key, None)

    def load(self, lane: Lane, rows: list[Claimed], trusted_until: float) -> list[Lease]:
        """Return the leases of rows that were claimed, the most urgent first. What cannot be loaded says so itself."""
        place, claimed_at = lane.places, time.monotonic()
        due, status = place["next_at"], place["status"]
        if len(rows) > 1:  # RETURNING has no order of its own
            try:
                rows = sorted(rows, key=lambda row: row.values[due])
            except TypeError:  # those come first whose time nobody can read
                read = sorted((row for row in rows if row.values[due] is not None), key=lambda row: row.values[due])
                rows = [row for row in rows if row.values[due] is None] + read
            if "priority" in place:
                rows.sort(key=lambda row: -(row.values[place["priority"]] or 0))
            elif len(set(lane.priorities)) > 1:
                rows.sort(key=lambda row: -lane.schedules[row.values[status]].priority)
        converted, instances = self._instances(lane, rows)
        pick, schedules = itemgetter(*[place[name] for name in LEASED]), lane.schedules
        # In the order of its fields: names cost a fifth of it.
        leases = [
            Lease(
                lane, schedules[s], s, key, token, n, fails, dies, error, row[0], made, None, trusted_until, claimed_at
            )
            for row, (s, key, token, n, fails, dies, error), made in zip(
                rows, map(pick, converted), instances, strict=True
            )
        ]
        for lease, made in zip(leases, instances, strict=True):
            if isinstance(made, Exception):
                lease.instance, lease.load_error = None, made
        if lane.bound.records_attempts:
            for lease, values in zip(leases, converted, strict=True):
                lease.owner, lease.number = self.owner, values[place["attempts"]]
        if lane.waits:
            find_out(lane, leases)
        return leases

    def _instances(self, lane: Lane, rows: list[Claimed]) -> Any:
        """Return the values of each row and the row as an instance, or what was raised in making it."""
        none: tuple[Any, dict[int, Any]] = (None, {})
        compiler, converters = none if lane.is_read_plainly else lane.converters()
        attnames = [field.attname for field in lane.fields]
        raw: list[Any] = [row.values for row in rows]
        if any(row.error for row in rows):
            return self._one_by_one(lane, rows, compiler, converters, attnames)
        try:
            values = [tuple(row) for row in compiler.apply_converters(raw, converters)] if converters else raw
            if not lane.is_one_table:
                return values, self._loaded_by_django(lane, values)
            return values, load_rows(lane, attnames, values)
        except Exception as error:
            if is_connection_error(error):
                raise
            # Code of the user's, and one bad row must not take its neighbours along.
            return self._one_by_one(lane, rows, compiler, converters, attnames)

    def _one_by_one(self, lane: Lane, rows: list[Claimed], compiler: Any, converters: Any, attnames: list[str]) -> Any:
        ours = {place: converters[place] for place in converters if lane.fields[place].name in lane.bound.columns}
        ours.update({place: converters[place] for place in converters if lane.fields[place].primary_key})
        values, instances = [], []
        for row in rows:
            values.append(next(iter(compiler.apply_converters([row.values], ours))) if ours else row.values)
            try:
                if row.error is not None:
                    raise row.error
                (converted,) = compiler.apply_converters([row.values], converters) if converters else [row.values]
                if lane.is_one_table:
                    instances.append(lane.bound.model.from_db(lane.using, attnames, tuple(converted)))
                else:
                    instances += self._loaded_by_django(lane, [tuple(converted)])
            except Exception as error:
                if is_connection_error(error):
                    raise
                instances.append(error)
        return values, instances

    def _loaded_by_django(self, lane: Lane, values: list[Any]) -> list[Any]:
        """Load rows whose columns are spread over several tables."""
        model = lane.bound.model
        keys = [row[0] for row in values]
        found = model._base_manager.using(lane.using).in_bulk(keys)
        if len(found) < len(keys):  # it filters, or they are gone
            found |= all_rows(model, lane.using).in_bulk([key for key in keys if key not in found])
        return [found.get(key) or LookupError("The row vanished while it was loaded.") for key in keys]

    def report(self, lane: Lane, leases: list[Lease]) -> None:
        """Let others know what was claimed."""
        sender, machine = lane.bound.model, lane.bound.face
        if leases_claimed.receivers and is_heard(leases_claimed, sender):
            keys = [lease.key for lease in leases]
            send(leases_claimed, sender, machine=machine, using=lane.using, keys=keys, owner=self.owner)
        for lease in leases:
            if not lease.crashes:
                continue
            facts: dict[str, Any] = {"crashes": lease.crashes, "error": lease.error}
            kind = ("recovered", str(lane), lease.status, lease.crashes)
            text = "%s in %r was held by a worker that said nothing of it, for the %s time in this state. %s"
            values = lease.label, lease.status, _ordinal(lease.crashes), lease.error
            self.digest.log(kind, logging.WARNING, text, *values, fields=lease.log_fields | facts)
            if is_heard(lease_recovered, sender):
                send(lease_recovered, sender, machine=machine, using=lane.using, instance=lease.instance, **facts)


def load_rows(lane: Lane, attnames: list[str], rows: list[Any]) -> list[Any]:
    """Return rows as `from_db()` would, which is most of what a claim costs, if nobody can tell the difference."""
    model: Any = lane.bound.model
    using, is_watched = lane.using, bool(pre_init.receivers or post_init.receivers)
    # Each may be patched at any time.
    from_db = getattr(model.from_db, "__func__", None)
    is_loaded_by_django = from_db is models.Model.from_db.__func__ and model.__setattr__ is object.__setattr__  # type: ignore[attr-defined]
    is_loaded_by_django = is_loaded_by_django and is_made_by_django(model)
    if not (lane.has_plain_attributes and is_loaded_by_django) or (is_watched and not is_made_plainly(model)):
        return [model.from_db(using, attnames, row) for row in rows]
    instances: list[Any] = compiled_loader(tuple(attnames))(model, using, rows)
    return instances


@cache
def compiled_loader(attnames: tuple[str, ...]) -> Callable[[type[models.Model], str, list[Any]], list[Any]]:
    """Return what makes instances of rows, written out for these fields: a dictionary takes half as long to write down as to
    fill from pairs."""
    values = [f"value_{place}" for place in range(len(attnames))]
    pairs = ", ".join(f"{name!r}: {value}" for name, value in zip(attnames, values, strict=True))
    scope: dict[str, Any] = {"ModelState": ModelState}
    exec(LOADER.format(values=", ".join(values), pairs=pairs), scope)  # noqa: S102 - of names that Python has accepted
    loader: Callable[[type[models.Model], str, list[Any]], list[Any]] = scope["load"]
    return loader


LOADER = """
def load(model, using, rows):
    new, instances = model.__new__, []
    for {values}, in rows:
        state = ModelState()
        state.adding, state.db = False, using
        instance = new(model)
        instance.__dict__ = {{"_state": state, {pairs}}}
        instances.append(instance)
    return instances
"""


def _ordinal(number: int) -> str:
    return {1: "first", 2: "second", 3: "third"}.get(number, f"{number}th")
