"""Handlers that do harm, each in one of the ways in which code of a project can. Which one is written on the row."""

from __future__ import annotations

import asyncio
import os
import time
from typing import Any

from asgiref.sync import sync_to_async
from django.db import connection, models, transaction
from django.db.models.signals import post_save
from django.dispatch import receiver

from lab.models.timed import Run
from statemachine_fields import State, StateMachine, handler
from statemachine_fields.worker import HandlerContext, Move, Retry


class Mute(Exception):
    """Cannot be made a text of."""

    def __str__(self) -> str:
        raise RuntimeError("no words")


class Foreign(BaseException):
    """Not an `Exception`, as those of some test runners and async libraries."""


#: What a handler may raise, by what is written on its row.
RAISED: dict[str, type[BaseException]] = {
    "mute": Mute,
    "interrupt": KeyboardInterrupt,
    "cancel": asyncio.CancelledError,
    "foreign": Foreign,
    "generator exit": GeneratorExit,
    "system exit": SystemExit,
}


class Act(models.Model):
    """A base: NEW or LATE → DONE, or FAILED after two tries. LATE is timed out, too; HELD waits for a person."""

    status: str

    does = models.CharField(max_length=50, blank=True)
    note = models.CharField(max_length=20, blank=True)
    seconds = models.FloatField(default=0)

    states = StateMachine(
        states=[
            State("NEW", retry_after=0.2, max_attempts=2, error_to="FAILED"),
            State("LATE", retry_after=0.2, timeout_after=60, timeout_to="FAILED"),
            State("PATIENT", retry_after=60),
            State("DONE"),
            State("FAILED"),
        ],
        initial="NEW",
        transitions={
            "NEW": ["DONE", "FAILED", "LATE", "PATIENT"],
            "LATE": ["DONE", "FAILED"],
            "PATIENT": ["DONE", "FAILED"],
        },
    )

    class Meta:
        abstract = True

    def mark(self, ctx: HandlerContext) -> Run:
        return Run(chore=self.pk, state=self.status, attempt=ctx.attempt, token=ctx.token, pid=os.getpid())

    def play(self, ctx: HandlerContext) -> Any:
        """Leave a mark and do what the row says."""
        self.mark(ctx).save()
        if self.does in RAISED:
            raise RAISED[self.does]
        match self.does:
            case "wait":
                return None
            case "update":
                return Move("DONE", update={"note": "written"})
            case "copy and move" | "copy and update":
                answer = self.does
                self.does = "wait"
                self.pk = None
                self._state.adding = True
                self.save()
                return "DONE" if answer == "copy and move" else Move("DONE", update={"note": "written"})
            case "exit 0":
                os._exit(0)
            case "exit 75":
                os._exit(75)
            case "retry with an exception":
                error: Any = ValueError("the exception's own words")
                return Retry(error=error)
            case "roll back":
                transaction.set_rollback(True)
            case "raise after the commit":
                transaction.on_commit(fail_after_commit)
            case "leave a block open":
                leave_a_block_open()
            case "leave autocommit off":
                leave_autocommit_off()
            case "use a closed cursor":
                cursor = connection.cursor()
                cursor.close()
                cursor.execute("SELECT 1")
            case "lock without waiting":
                Run.objects.select_for_update(nowait=True).get(chore=0)
        time.sleep(self.seconds)
        return "DONE"


def fail_after_commit() -> None:
    raise ValueError("after the commit")


def leave_a_block_open() -> None:
    transaction.atomic().__enter__()


def leave_autocommit_off() -> None:
    transaction.set_autocommit(False)


def backend() -> int:
    """Return the id of the server's process that serves this connection."""
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_backend_pid()")
        return int(cursor.fetchone()[0])


async def leave() -> None:
    raise SystemExit(3)


class Stunt(Act):
    """In a thread."""

    @handler("NEW", "LATE", "PATIENT")
    def perform(self, ctx: HandlerContext):
        return self.play(ctx)


class AtomicStunt(Act):
    """In a transaction with its outcome."""

    @handler("NEW", "LATE", "PATIENT", atomic=True)
    def perform(self, ctx: HandlerContext):
        return self.play(ctx)


class SavedStunt(Act):
    """With a `save()` of its own, so that each row is written by itself."""

    @handler("NEW", "LATE", "PATIENT")
    def perform(self, ctx: HandlerContext):
        return self.play(ctx)

    def save(self, *args: Any, **kwargs: Any) -> None:
        super().save(*args, **kwargs)


class HeardStunt(Act):
    """With a receiver, which does harm too, when the row is done."""

    @handler("NEW", "LATE", "PATIENT")
    def perform(self, ctx: HandlerContext):
        if self.does.startswith("copy") or self.does == "wait":
            return self.play(ctx)
        self.mark(ctx).save()
        return "DONE"


@receiver(post_save, sender=HeardStunt)
def hear(instance: HeardStunt, **kwargs: object) -> None:
    if instance.status != "DONE":
        return
    if instance.does == "roll back":
        transaction.set_rollback(True)
    elif instance.does == "raise after the commit":
        transaction.on_commit(fail_after_commit)


class AsyncStunt(Act):
    """On the event loop."""

    @handler("NEW", "LATE", "PATIENT")
    async def perform(self, ctx: HandlerContext):
        if self.does in ("only sleep", "write later"):
            await asyncio.sleep(self.seconds)
        if self.does == "only sleep":
            return "DONE"
        await self.mark(ctx).asave()
        if self.does in RAISED:
            raise RAISED[self.does]
        match self.does:
            case "write later":
                return "DONE"
            case "leave a block open":
                await sync_to_async(leave_a_block_open)()
            case "leave autocommit off":
                await sync_to_async(leave_autocommit_off)()
            case "say who serves":
                await Run.objects.acreate(
                    chore=0, state="backend", attempt=ctx.attempt, token=ctx.token, pid=await sync_to_async(backend)()
                )
            case "subtask leaves":
                self.subtask = asyncio.create_task(leave())
            case "await a subtask that leaves":
                await asyncio.create_task(leave())
            case "stop the loop":
                asyncio.get_running_loop().stop()
        await asyncio.sleep(self.seconds)
        if self.does == "say who serves":
            await Run.objects.acount()
        return "DONE"


class CodeField(models.CharField):
    """A number in Python that is a text in the database, such as 'k-5'. What people type in is left as it is."""

    def from_db_value(self, value: Any, expression: Any, connection: Any) -> Any:
        return None if value is None else int(value.removeprefix("k-"))

    def get_prep_value(self, value: Any) -> Any:
        return f"k-{value}" if isinstance(value, int) else value


class Locker(models.Model):
    """A key whose values differ between Python and the database."""

    status: str

    code = CodeField(primary_key=True, max_length=20)
    note = models.CharField(max_length=20, blank=True)

    states = StateMachine(
        states=[State("NEW", retry_after=60), State("DONE")], initial="NEW", transitions={"NEW": ["DONE"]}
    )

    @states.handler("NEW")
    def open(self):
        return Move("DONE", update={"note": "written"}) if self.note == "update" else "DONE"
