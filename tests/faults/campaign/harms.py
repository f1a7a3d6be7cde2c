"""Every kind of harm that a campaign does. Each goes on in a thread of its own, at times that its seed says."""

from __future__ import annotations

import random
import signal
import threading
import time
from datetime import timedelta
from typing import TYPE_CHECKING, Any, ClassVar

import psycopg
from django.db import Error, connections
from django.utils import timezone
from psycopg import sql

from lab.models import Bale, Expedition, HastyPetition, Leg, Luggage
from statemachine_fields.db.clock import StatementClock
from statemachine_fields.exceptions import StateMachineError
from statemachine_fields.worker.models import RunStatistics
from tests.faults.campaign.crew import LEASE
from tests.faults.campaign.rows import (
    CANCELLED,
    HAVE_LEFT,
    LATE,
    MODELS,
    PRIORITIES,
    QUEUES,
    SCRIPTED,
    TERMINAL,
)

if TYPE_CHECKING:
    from tests.faults.campaign.run import Campaign

#: Who moved a row, in the metadata of the record.
PEOPLE = {"by": "people"}

#: What may go wrong with a harm that is done while another is.
IN_THE_WAY = (Error, psycopg.Error, OSError)


class Harm:
    """One kind of harm: begun, and after a while ended. A stroke has no end."""

    name: ClassVar[str]
    #: Seconds between two, from and to.
    every: ClassVar[tuple[float, float]]
    #: Seconds that it lasts, from and to.
    lasts: ClassVar[tuple[float, float]] = (0.0, 0.0)
    #: That processes die of it.
    kills: ClassVar[bool] = False

    def __init__(self, campaign: Campaign) -> None:
        self.campaign = campaign

    @classmethod
    def help(cls) -> str:
        return (cls.__doc__ or "").strip()

    def begin(self, chance: random.Random) -> str | None:
        """Do it, and return what was done; nothing if nothing could be."""
        raise NotImplementedError

    def end(self) -> None:
        """Undo what can be undone. May be called again if it raised."""

    def run(self, stop: threading.Event, seed: int) -> None:
        """Do it again and again until told to stop, and leave nothing of it."""
        timeline, chance = self.campaign.timeline, random.Random(f"{seed} {self.name}")
        pause = chance.uniform(0, self.every[1])
        try:
            while not stop.wait(pause):
                what = None
                try:
                    what = self.begin(chance)
                except IN_THE_WAY:
                    timeline.count("harm that another harm undid")
                    connections.close_all()  # Django would keep what is broken
                if what is not None:
                    timeline.count(self.name)
                    if any(self.lasts):
                        timeline.begin(self.name, what)
                    elif what:
                        timeline.note(f"{self.name}: {what}")
                stop.wait(chance.uniform(*self.lasts))
                self._end()
                timeline.end(self.name)
                pause = chance.uniform(*self.every)
        finally:
            connections.close_all()

    def _end(self) -> None:
        while True:
            try:
                return self.end()
            except IN_THE_WAY:  # another harm has the server: this one has to be undone all the same
                time.sleep(0.1)


# To processes.


class Kill(Harm):
    """kill -9 of a worker process."""

    name, every, kills = "kill", (1.5, 4.0), True

    def begin(self, chance: random.Random) -> str | None:
        children = self.campaign.crew.children()
        if not children:
            return None
        slot, pid = chance.choice(children)
        slot.worker.kill(pid)
        self.campaign.timeline.count("kills")
        return f"process {pid} of {slot.name}"


class KillSupervisor(Harm):
    """kill -9 of a supervisor, whose processes are orphans then. Another is started."""

    name, every, kills = "kill-supervisor", (6.0, 12.0), True

    def begin(self, chance: random.Random) -> str | None:
        slot = chance.choice(self.campaign.crew.slots)
        with slot.lock:
            slot.worker.kill()
            slot.worker.process.wait()
            self.campaign.timeline.count("kills")
            self.campaign.crew.start(slot)
        return slot.name


class KillHost(Harm):
    """kill -9 of a worker with all its processes, as if its host had gone. Another is started."""

    name, every, kills = "kill-host", (8.0, 16.0), True

    def begin(self, chance: random.Random) -> str | None:
        slot = chance.choice(self.campaign.crew.slots)
        with slot.lock:
            slot.worker.kill_all()
            slot.worker.process.wait()
            self.campaign.timeline.count("kills")
            self.campaign.crew.start(slot)
        return slot.name


class Stop(Harm):
    """SIGTERM, in good order, and another is started. It has to exit with 0."""

    name, every = "stop", (5.0, 10.0)

    def begin(self, chance: random.Random) -> str | None:
        slot = chance.choice(self.campaign.crew.slots)
        with slot.lock:
            if not slot.has_begun:
                return None
            began = self.campaign.timeline.now
            self.campaign.crew.stop([slot])
            self.campaign.crew.start(slot)
        return f"{slot.name}, which took {self.campaign.timeline.now - began:.1f} s"


class Freeze(Harm):
    """SIGSTOP of one process, or of a worker with all its processes, for longer than the lease; then SIGCONT."""

    name, every, lasts = "freeze", (4.0, 9.0), (LEASE * 1.2, LEASE * 2)
    frozen: tuple[Any, list[int]] | None = None

    def begin(self, chance: random.Random) -> str | None:
        slot = chance.choice(self.campaign.crew.slots)
        worker, members = slot.worker, slot.worker.members()
        if members and chance.random() < 0.5:
            members = [chance.choice(members)]
        for pid in members:
            worker.kill(pid, signal.SIGSTOP)
        self.frozen = worker, members
        return f"{slot.name} {members}"

    def end(self) -> None:
        if self.frozen is not None:
            worker, members = self.frozen
            for pid in members:
                worker.kill(pid, signal.SIGCONT)
            self.frozen = None


# To connections, through the proxy.


class Cut(Harm):
    """A share of the connections through the proxy is closed."""

    name, every = "cut", (1.0, 4.0)

    def begin(self, chance: random.Random) -> str | None:
        number = self.campaign.proxy.cut(chance.choice([0.2, 0.5, 1.0]), chance)
        self.campaign.timeline.count("connections cut", number)
        return f"{number} connections" if number else None


class Silence(Harm):
    """The connections through the proxy fall silent, and new ones work. They are never heard of again."""

    name, every, lasts = "silence", (6.0, 12.0), (3.0, 6.0)

    def begin(self, chance: random.Random) -> str | None:
        return f"{self.campaign.proxy.silence()} connections"

    def end(self) -> None:
        self.campaign.proxy.forget()


class SilenceOfAll(Harm):
    """The proxy forwards nothing, for new connections neither, and later all that was said."""

    name, every, lasts = "silence-all", (8.0, 16.0), (1.0, 5.0)

    def begin(self, chance: random.Random) -> str | None:
        return f"{self.campaign.proxy.silence_all()} connections"

    def end(self) -> None:
        self.campaign.proxy.speak()


class Lose(Harm):
    """Connections through the proxy are cut in place of a reply, after the server has done what was asked."""

    name, every, lasts = "lose", (3.0, 8.0), (0.5, 2.0)

    def begin(self, chance: random.Random) -> str | None:
        share = chance.choice([0.05, 0.2, 0.5])
        self.campaign.proxy.lose_replies(share=share)
        return f"{share:.0%} of the replies"

    def end(self) -> None:
        self.campaign.proxy.lose_replies(0)


class Latency(Harm):
    """What goes through the proxy takes its time."""

    name, every, lasts = "latency", (4.0, 10.0), (2.0, 5.0)

    def begin(self, chance: random.Random) -> str | None:
        seconds = chance.choice([0.005, 0.05, 0.15])
        self.campaign.proxy.latency(seconds)
        return f"{seconds} s each way"

    def end(self) -> None:
        self.campaign.proxy.latency(0)


# To the server.


class Terminate(Harm):
    """pg_terminate_backend() of a share of all connections."""

    name, every = "terminate", (2.0, 6.0)

    def begin(self, chance: random.Random) -> str | None:
        with self.campaign.connect() as direct:
            found = direct.execute(
                "SELECT pid FROM pg_stat_activity WHERE datname = current_database() AND application_name <> 'campaign'"
                " AND backend_type = 'client backend' ORDER BY pid"
            ).fetchall()
            chosen = chance.sample(found, max(1, len(found) // chance.choice([1, 3, 10]))) if found else []
            for (pid,) in chosen:
                direct.execute("SELECT pg_terminate_backend(%s)", [pid])
        return f"{len(chosen)} of {len(found)} connections"


class RestartFast(Harm):
    """The server is stopped in good order and started again."""

    name, every, mode = "restart-fast", (12.0, 20.0), "fast"

    def begin(self, chance: random.Random) -> str | None:
        away = chance.choice([0.0, 0.0, 1.0, 3.0])
        with self.campaign.server_lock:
            try:
                self.campaign.server.stop(self.mode)
                time.sleep(away)
            finally:
                self.campaign.server.start()
        self.campaign.timeline.count("restarts")
        return f"away for {away:g} s and a moment"


class RestartImmediate(RestartFast):
    """The server crashes, as by `pg_ctl stop -m immediate`, and is started again."""

    name, every, mode = "restart-immediate", (12.0, 20.0), "immediate"


class LockRows(Harm):
    """Somebody keeps rows of a table locked."""

    name, every, lasts = "lock-rows", (1.0, 3.0), (0.5, 4.0)
    holder: Any = None

    def begin(self, chance: random.Random) -> str | None:
        table = chance.choice([*MODELS, Luggage])._meta
        self.holder = self.campaign.connect(autocommit=False)
        found = self.holder.execute(
            sql.SQL("SELECT 1 FROM {table} ORDER BY {key} DESC LIMIT %s FOR UPDATE SKIP LOCKED").format(
                table=sql.Identifier(table.db_table), key=sql.Identifier(table.pk.column)
            ),
            [chance.choice([1, 10, 100])],
        ).fetchall()
        return f"{len(found)} of {table.db_table}"

    def end(self) -> None:
        if self.holder is not None:
            self.holder.close()
            self.holder = None


class LockTable(LockRows):
    """Somebody has a table for himself (ACCESS EXCLUSIVE), as migrations do: of rows, of records, or the statistics."""

    name, every, lasts = "lock-table", (4.0, 9.0), (0.5, 4.0)

    def begin(self, chance: random.Random) -> str | None:
        model = chance.choice([*MODELS, *MODELS, *[model.states.transition_model for model in MODELS], RunStatistics])
        table: str = model._meta.db_table
        self.holder = self.campaign.connect(autocommit=False)
        self.holder.execute("SET LOCAL lock_timeout = '2s'")
        self.holder.execute(sql.SQL("LOCK TABLE {} IN ACCESS EXCLUSIVE MODE").format(sql.Identifier(table)))
        return table


class Trigger(Harm):
    """A trigger meets some rows of one table."""

    body: ClassVar[str]
    table: str | None = None

    def begin(self, chance: random.Random) -> str | None:
        meta = chance.choice(SCRIPTED)._meta
        which, always = chance.randrange(5), chance.random() < 0.3
        condition = "" if always else "AND NEW.status IS DISTINCT FROM OLD.status"
        name = self.function
        with self.campaign.connect() as direct:
            direct.execute(
                f"CREATE OR REPLACE FUNCTION {name}() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN"
                f" IF abs(hashtext(NEW.{meta.pk.column}::text)) % 5 = {which} {condition} THEN {self.body} END IF;"
                " RETURN NEW; END $$"
            )
            self.table = meta.db_table
            direct.execute(
                f"CREATE TRIGGER {name} BEFORE UPDATE ON {self.table} FOR EACH ROW EXECUTE FUNCTION {name}()"
            )
        return f"a fifth of {self.table}, {'every update' if always else 'moves'}"

    @property
    def function(self) -> str:
        return self.name.replace("-", "_")

    def end(self) -> None:
        if self.table is not None:
            with self.campaign.connect() as direct:
                direct.execute(f"DROP TRIGGER IF EXISTS {self.function} ON {self.table}")
            self.table = None


class TriggerRaises(Trigger):
    """A trigger that refuses some rows with an error: their moves, or every update."""

    name, every, lasts = "trigger-raises", (5.0, 10.0), (1.0, 4.0)
    body = "RAISE EXCEPTION 'no such move';"


class TriggerIgnores(Trigger):
    """A trigger that returns NULL for some rows: nothing is written, and no error is raised."""

    name, every, lasts = "trigger-ignores", (5.0, 10.0), (1.0, 4.0)
    body = "RETURN NULL;"


class TriggerIsSlow(Trigger):
    """A trigger that takes a while for some rows."""

    name, every, lasts = "trigger-is-slow", (5.0, 10.0), (1.0, 4.0)
    body = "PERFORM pg_sleep(0.1);"


# By people.


class People(Harm):
    """People move rows themselves: one or many, hold and cancel them, take them from workers, change when they are due."""

    name, every = "people", (0.05, 0.3)

    def begin(self, chance: random.Random) -> str | None:
        model: Any = chance.choice(SCRIPTED)
        rows = [*model.objects.exclude(status__in=TERMINAL).order_by("-pk")[:50]]
        if not rows:
            return None
        row, act = chance.choice(rows), chance.choice([self.move, self.move, self.move_many, self.release, self.run_at])
        try:
            act(model, row, chance)
        except StateMachineError:
            self.campaign.timeline.count("people refused")
        return ""

    def move(self, model: Any, row: Any, chance: random.Random) -> None:
        wanted = {"NEW": ["HELD", CANCELLED], "DOING": ["NEW", "HELD", CANCELLED], "HELD": ["NEW"]}
        if row.status in wanted:
            row.states.transition_to(chance.choice(wanted[row.status]), metadata=PEOPLE)

    def move_many(self, model: Any, row: Any, chance: random.Random) -> None:
        rows = model.objects.filter(pk__in=[other.pk for other in model.objects.filter(status="HELD").only("pk")[:20]])
        model.states.bulk_transition(rows, "NEW", PEOPLE)

    def release(self, model: Any, row: Any, chance: random.Random) -> None:
        row.states.release()

    def run_at(self, model: Any, row: Any, chance: random.Random) -> None:
        if row.status_next_at is not None:
            row.states.run_at(timezone.now() + timedelta(seconds=chance.uniform(-1, 1)))


class Rank(Harm):
    """People change the queue and the priority of rows, whether they wait or are run."""

    name, every = "rank", (0.05, 0.3)

    def begin(self, chance: random.Random) -> str | None:
        rows = [*Bale.objects.exclude(status__in=TERMINAL).order_by("-pk")[:50]]
        for row in chance.sample(rows, min(3, len(rows))):
            row.queue, row.priority = chance.choice(QUEUES), chance.choice(PRIORITIES)
            row.save(update_fields=["queue", "priority"])  # all else may have been written meanwhile
        return "" if rows else None


class Meet(Harm):
    """Somebody delivers an event at the very moment at which the row's time is up."""

    name, every = "meet", (0.05, 0.2)

    def begin(self, chance: random.Random) -> str | None:
        row: Any = HastyPetition.objects.filter(status_next_at__gt=StatementClock()).order_by("status_next_at").first()
        if row is None:
            return None
        ahead = (row.status_next_at - timezone.now()).total_seconds()
        time.sleep(min(max(ahead + chance.uniform(-0.02, 0.1), 0.0), 1.0))
        row.states.deliver(chance.choice(["letter", "call"]))
        self.campaign.timeline.count("events")
        return ""


class Recall(Harm):
    """People call off a row that waits for others, and make more of those for rows that have left, also while others are cancelled."""

    name, every = "recall", (0.1, 0.4)

    def begin(self, chance: random.Random) -> str | None:
        walking = [*Expedition.objects.filter(status="WALKING").order_by("-pk")[:50]]
        if walking and chance.random() < 0.3:
            try:
                chance.choice(walking).states.transition_to("LATE", metadata=PEOPLE)
            except StateMachineError:
                self.campaign.timeline.count("people refused")
        left = Expedition.objects.filter(status__in=HAVE_LEFT).order_by("-status_cancels", "-pk").first()
        if left is None:
            return None
        Leg.objects.create(expedition=left, number=LATE, outcome="")
        return ""


HARMS: dict[str, type[Harm]] = {
    harm.name: harm
    for harm in (
        Kill, KillSupervisor, KillHost, Stop, Freeze, Cut, Silence, SilenceOfAll, Lose, Latency, Terminate, RestartFast,
        RestartImmediate, LockRows, LockTable, TriggerRaises, TriggerIgnores, TriggerIsSlow, People,
        Rank, Meet, Recall,
    )
}  # fmt: skip

#: Harm that is there from the start, in the rows or in the surroundings of some workers.
STANDING = {
    "poison": "Rows that end their process (os._exit), at most three.",
    "hang": "Rows that run past their time limit, at most four.",
    "raise": "Rows that always raise: errors, KeyboardInterrupt, one that cannot be printed, a closed cursor.",
    "nonsense": "Rows whose handler returns what is no outcome.",
    "leak": "Rows whose handler leaves a transaction open.",
    "copy": "Rows whose handler copies its instance by Django's recipe, and moves on.",
    "timeouts": "One worker has a statement_timeout or a lock_timeout.",
    "queues": "One worker serves some queues only, one of them one row at a time.",
    "router": "One worker serves --database main while the router says default, whatever the hints.",
    "pool": "One worker has Django's `pool` option. Needs psycopg_pool.",
}

KINDS = {**{name: harm.help() for name, harm in HARMS.items()}, **STANDING}
