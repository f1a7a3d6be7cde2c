"""What must hold when all harm is over. Everything is read from the database: a row says itself what was to become of it."""

from __future__ import annotations

import datetime
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from django.db.models import Count, Exists, OuterRef, Q, Sum

from lab.models import (
    Deposit,
    Entry,
    Expedition,
    Footprint,
    Guest,
    HastyPetition,
    Leg,
    Luggage,
    Paper,
    Receipt,
)
from statemachine_fields.machine.verify import Verifier
from statemachine_fields.machine.verify_events import event_findings
from statemachine_fields.worker.models import RunStatistics
from tests.faults.campaign.crew import SETTINGS
from tests.faults.campaign.rows import (
    CANCELLED,
    DONE,
    FAILED,
    HAVE_LEFT,
    HOPELESS,
    LATE,
    MODELS,
    RISKY,
    SCRIPTED,
    TERMINAL,
    WAITING,
    expeditions_under_way,
)

EXAMPLES = 3

#: What a handler moves a row to. All else is done by people or by policy.
BY_HANDLERS = ["DOING", DONE]

#: Records of moves that a handler made itself.
ITSELF = Q(metadata__by="itself")


@dataclass(frozen=True)
class Broken:
    """An invariant that does not hold."""

    code: str
    text: str
    #: A row to look for in the logs, as workers name it.
    label: str = ""


def labelled(model: Any, key: Any) -> str:
    return f"{model._meta.label} pk={key!r}"


def made_by_workers(model: Any) -> Any:
    """Return the records of moves that handlers or workers made."""
    records = model.states.transition_model.objects.order_by().filter(metadata__cancelled_by__isnull=True)
    return records.filter(Q(metadata__by__isnull=True) | ITSELF)


def check_histories() -> Iterator[Broken]:
    """I2, I4, I6: an unbroken chain that ends in the row's status, no number twice, nothing but declared moves."""
    for model in MODELS:
        for found in list(Verifier(model.states._meta).findings())[:EXAMPLES]:
            yield Broken(
                "I2 history", f"{labelled(model, found.pk)} {found.code}: {found.what}", labelled(model, found.pk)
            )
        records = model.states.transition_model.objects.order_by()
        twice = records.values("instance_id", "sequence").annotate(number=Count("pk")).filter(number__gt=1)
        for each in twice[:EXAMPLES]:
            yield Broken("I2 sequence", f"{model.__name__}: {each}")
        for record in records.filter(Q(metadata__forced=True) | Q(from_status__in=TERMINAL))[:EXAMPLES]:
            what = f"{record.from_status} → {record.to_status}"
            yield Broken(
                "I4 edge", f"{labelled(model, record.instance_id)}: {what}", labelled(model, record.instance_id)
            )


def check_events() -> Iterator[Broken]:
    """I7: nobody sleeps beside an event that the row waits for, and events are numbered and taken as they should be."""
    for model in WAITING:
        for found in list(event_findings(model.states._meta, "default"))[:EXAMPLES]:
            label = labelled(model, found.pk)
            yield Broken("I7 events", f"{label} {found.code}: {found.what}", label)
        at_rest = model.objects.filter(status_error="")
        for status, names, most in (
            ("OPEN", ("letter", "call"), 1),
            ("HEARD", ("letter", "denied", "court.granted"), 0),
            ("MISSED", ("letter", "call"), 0),
        ):
            untaken = Count("status_events", filter=Q(status_events__taken_by=None, status_events__name__in=names))
            for row in at_rest.filter(status=status).annotate(left=untaken).filter(left__gt=most)[:EXAMPLES]:
                label = labelled(model, row.pk)
                yield Broken("I7 asleep", f"{label} rests in {status} beside {row.left} events", label)
        yield from _takers(model)


def _takers(model: Any) -> Iterator[Broken]:
    """I7: each event is untaken, or taken by the one move that it brought about. A time-out brings its move about alone, whatever came."""
    taken: dict[tuple[Any, int], list[tuple[int, str]]] = {}
    events = model.states.event_model.objects.exclude(taken_by=None).order_by("number")
    for key, sequence, number, name in events.values_list("instance_id", "taken_by", "number", "name"):
        taken.setdefault((key, sequence), []).append((number, name))
    handled: Counter[tuple[Any, int]] = Counter()
    wrong = []
    records = model.states.transition_model.objects.order_by("instance_id", "sequence")
    for key, sequence, facts in records.values_list("instance_id", "sequence", "metadata"):
        its = taken.get((key, sequence), [])
        numbers = [number for number, _name in its]
        handled.update((key, number) for number in facts.get("read", numbers))
        if "read" in facts:
            fits = numbers == facts["read"]
        elif "event" in facts:
            fits = [name for _number, name in its] == [facts["event"]]
        else:
            fits = not its
        if not fits:
            wrong.append((key, f"move {sequence}, with {facts}, took {its}"))
    wrong += [
        (key, f"event {number} was handled by {times} moves") for (key, number), times in handled.items() if times > 1
    ]
    for key, what in wrong[:EXAMPLES]:
        yield Broken("I7 taken", f"{labelled(model, key)}: {what}", labelled(model, key))


def time_outs() -> Any:
    """Return the records of moves of rows that waited for events, and for too long."""
    return HastyPetition.states.transition_model.objects.filter(metadata__timeout_after__isnull=False).order_by()


def narrow_time_outs() -> int:
    """Return how many rows got an event around the moment at which they were timed out."""
    near = datetime.timedelta(milliseconds=50)
    events = HastyPetition.states.event_model.objects.filter(
        instance_id=OuterRef("instance_id"),
        delivered_at__gte=OuterRef("transitioned_at") - near,
        delivered_at__lte=OuterRef("transitioned_at") + near,
    )
    return int(time_outs().filter(Exists(events)).count())


def check_calls() -> Iterator[Broken]:
    """I1: one claim, one call."""
    twice = Footprint.objects.values("machine", "key", "token").annotate(number=Count("pk")).filter(number__gt=1)
    for each in twice.order_by("machine", "key")[:EXAMPLES]:
        calls = list(
            Footprint.objects.filter(machine=each["machine"], key=each["key"], token=each["token"]).values_list("pid")
        )
        text = f"token {each['token']} of {each['machine']} {each['key']} ran {each['number']} times, in {calls}"
        yield Broken("I1 one call", text, f"lab.{each['machine']} pk={each['key']}")


def check_effects() -> Iterator[Broken]:
    """What handlers wrote is there: at least once for each move, exactly once if atomic, and what `Move(update=)` said."""
    for model in SCRIPTED:
        moves = counted(made_by_workers(model).filter(to_status__in=BY_HANDLERS), "instance_id", "from_status")
        if model is Deposit:
            effects = counted(Entry.objects.order_by(), "deposit_id", "state")
        else:
            effects = counted(Footprint.objects.filter(machine=model.__name__).order_by(), "key", "state")
        wrong = [
            (key, state, moves[key, state], effects[key, state])
            for key, state in {**moves, **(effects if model is Deposit else {})}
            if (
                moves[key, state] != effects[key, state]
                if model is Deposit
                else moves[key, state] > effects[key, state]
            )
        ]
        for key, state, made, effect in sorted(wrong)[:EXAMPLES]:
            text = f"{model._meta.label} pk={key} left {state} {made} times, and its handler's writes are there {effect} times"
            yield Broken("I1 effects", f"{text} ({len(wrong)} such rows)", f"{model._meta.label} pk={key}")
        unwritten = model.objects.filter(Q(script="update") & ~Q(note="DOING") | Q(script="copy") & ~Q(note="copied"))
        for row in unwritten.filter(status=DONE)[:EXAMPLES]:
            text = f"{labelled(model, row.pk)} is done, but not updated: script {row.script!r}, note {row.note!r}"
            yield Broken("I2 update", text, labelled(model, row.pk))
    receipts = counted(Receipt.objects.filter(created=False).order_by(), "paper_id")
    records = counted(Paper.states.transition_model.objects.order_by(), "instance_id")
    for paper in [paper for paper in {**records, **receipts} if records[paper] != receipts[paper]][:EXAMPLES]:
        text = f"lab.Paper pk={paper[0]}: {records[paper]} records, and its receiver wrote {receipts[paper]}"
        yield Broken("I2 receivers", text, f"lab.Paper pk={paper[0]}")


def counted(rows: Any, *names: str) -> Counter[tuple[str, ...]]:
    """Count rows by columns, as texts."""
    found = rows.values_list(*names).annotate(number=Count("pk"))
    return Counter({tuple(map(str, values)): number for *values, number in found})


def check_ends(*, may_be_given_up: bool) -> Iterator[Broken]:
    """I3, I5: every row that can finish has, and those that cannot are given up or parked.

    :param may_be_given_up: that workers may have died, or seemed to, often enough to be blamed on any row.
    """
    for model in SCRIPTED:
        good = model.objects.exclude(script__in=RISKY)
        lost = good.exclude(status__in=[DONE, CANCELLED])
        if may_be_given_up:
            lost = lost.exclude(status_crashes__gte=SETTINGS["MAX_CRASHES"], status_next_at=None)
        yield from _ends("I3 unfinished", model, lost)
        yield from _ends("I5 poison", model, model.objects.filter(script__in=HOPELESS, status=DONE))
        free = Q(status_next_at=None, status_lease_owner="") | Q(status__in=[DONE, FAILED, CANCELLED])
        yield from _ends("I5 poison", model, model.objects.filter(script__in=RISKY).exclude(free))
    guests = Guest.objects.all()
    yield from _ends("I3 unfinished", Guest, guests)
    if Luggage.objects.exclude(guest__in=guests.values("pk")).exists():
        yield Broken("I3 unfinished", "luggage of guests who are gone")


def _ends(code: str, model: Any, rows: Any) -> Iterator[Broken]:
    columns = ["status", "status_next_at", "status_failures", "status_crashes", "status_lease_owner", "status_error"]
    if model is not Guest:
        columns.insert(0, "script")
    number = rows.count()
    for row in rows.values("pk", *columns)[:EXAMPLES]:
        key = row.pop("pk")
        row["status_error"] = row["status_error"][:300]
        yield Broken(code, f"{labelled(model, key)} (one of {number}): {row}", labelled(model, key))


def check_families() -> Iterator[Broken]:
    """I7: no parent is stranded, each has the children that it made once, and has gone where they say, once."""
    legs: dict[Any, Counter[str]] = {}
    for expedition, status in Leg.objects.exclude(number=LATE).values_list("expedition", "status"):
        legs.setdefault(expedition, Counter())[status] += 1
    for row in expeditions_under_way()[:EXAMPLES]:
        text = f"{labelled(Expedition, row.pk)} is in {row.status} beside {dict(legs.get(row.pk, {}))}, {row.status_next_at}"
        yield Broken("I7 stranded", text, labelled(Expedition, row.pk))
    for row in Expedition.objects.exclude(status="PLANNED"):
        its = legs.get(row.pk, Counter())
        if its.total() != len(row.plan["legs"]):
            text = f"{labelled(Expedition, row.pk)} wanted {len(row.plan['legs'])} legs and has {its.total()}"
            yield Broken("I7 children", text, labelled(Expedition, row.pk))
        elif row.status in ("HOME", "FAILED") and (row.status == "HOME") == bool(its["LOST"]):
            text = f"{labelled(Expedition, row.pk)} is {row.status} beside {dict(its)}"
            yield Broken("I7 decision", text, labelled(Expedition, row.pk))
    ends = Expedition.states.transition_model.objects.filter(from_status="WALKING").order_by()
    for each in ends.values("instance_id").annotate(number=Count("pk")).filter(number__gt=1)[:EXAMPLES]:
        yield Broken("I7 once", f"{each}")


def check_cancelled() -> Iterator[Broken]:
    """I7: who was there when its parent left is cancelled and says so, and nobody else is.

    A child that is parked has not ended either.
    """
    records = Expedition.states.transition_model.objects.filter(from_status="WALKING").order_by()
    left: dict[Any, datetime.datetime] = dict(records.values_list("instance_id", "transitioned_at"))
    wrong: list[tuple[Leg, str]] = []
    ends = Leg.states.transition_model.objects.filter(to_status="CALLED_OFF").order_by("instance_id")
    called_off = set()
    for record in ends.select_related("instance"):
        leg, key = record.instance, record.instance.expedition_id
        called_off.add(leg.pk)
        said = {"cancelled_by": labelled(Expedition, key), "left": "WALKING"}
        if record.metadata != said:
            wrong.append((leg, f"is called off, and its record says {record.metadata}"))
        elif key not in left or left[key] > record.transitioned_at:
            wrong.append((leg, "is called off, and its parent had not left by then"))
        elif leg.number == LATE:
            wrong.append((leg, "is called off, and was made after its parent had left"))
    unrecorded = Leg.objects.filter(status="CALLED_OFF").exclude(pk__in=called_off)
    wrong += [(leg, "is called off, and there is no record of it") for leg in unrecorded]
    behind = Leg.objects.filter(expedition__status__in=HAVE_LEFT, expedition__status_cancels=0).exclude(number=LATE)
    behind = behind.exclude(status__in=Leg.states._meta.graph.terminal_states)
    wrong += [(leg, f"is in {leg.status}, and its parent has left and bears no mark") for leg in behind]
    for leg, what in wrong[:EXAMPLES]:
        yield Broken("I7 cancelled", f"{labelled(Leg, leg.pk)} of {leg.expedition_id} {what}", labelled(Leg, leg.pk))


def given_up() -> int:
    """Return how many harmless rows were given up for the deaths of workers."""
    blamed = {"status_crashes__gte": SETTINGS["MAX_CRASHES"], "status_next_at": None}
    return sum(
        model.objects.exclude(script__in=RISKY).exclude(status__in=TERMINAL).filter(**blamed).count()
        for model in SCRIPTED
    )


def check_leases(since: datetime.datetime) -> Iterator[Broken]:
    """I8: nobody who lived when the stop began holds a row after it."""
    for model in MODELS:
        held = model.objects.filter(status_lease_expires_at__gte=since)
        number = held.count()
        for row in held.values("pk", "status", "status_lease_owner", "status_lease_expires_at")[:EXAMPLES]:
            key = row.pop("pk")
            yield Broken("I8 leases", f"{labelled(model, key)} (one of {number}): {row}", labelled(model, key))


def check_statistics(elsewhere: Counter[tuple[str, str]], *, is_exact: bool) -> Iterator[Broken]:
    """The statistics do not boast: no more moves than there are records, and as many unless a process was killed.

    A handler whose worker has lost the row, or has stopped waiting for it, may still move the row itself: nobody counts that.

    :param elsewhere: what one worker wrote to another database.
    """
    told = Counter(elsewhere)
    moves = RunStatistics.objects.filter(kind="moved").order_by()
    for machine, state, moved in moves.values_list("machine", "state").annotate(Sum("count")):
        told[machine, state] += moved
    for model in MODELS:
        made = counted(made_by_workers(model), "from_status")
        itself = counted(made_by_workers(model).filter(ITSELF), "from_status")
        for state in model.states._meta.graph.states:
            true, claimed = made[(state,)], told[str(model.states), state]
            if claimed > true:
                text = f"{model.states} {state}: {claimed} moved by the statistics, {true} by the records"
                yield Broken("statistics above", text)
            elif claimed < true - itself[(state,)] and is_exact:
                text = f"{model.states} {state}: {claimed} moved by the statistics, {true} by the records, nobody was killed"
                yield Broken("statistics below", text)
