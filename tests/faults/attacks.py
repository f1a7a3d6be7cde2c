"""More that a handler, a guard or a receiver can do. A row of `lab.models.harm` names it, and this takes the place of
what the project's own handlers do, in a worker whose settings are `tests.faults.settings_attacks`."""

from __future__ import annotations

import asyncio
import os
import time
from typing import Any

from asgiref.sync import async_to_sync, sync_to_async
from django.apps import AppConfig
from django.db import connection, transaction

from statemachine_fields.signals import handler_failed, leases_claimed
from statemachine_fields.worker import TryAgainLater
from tests.faults.injections import injected


def attacked(**injections: Any) -> dict[str, str]:
    """Return the environment of a worker with these handlers."""
    return {**injected(**injections), "DJANGO_SETTINGS_MODULE": "tests.faults.settings_attacks"}


class NotYet(TryAgainLater):
    """Has an `__init__()` of its own, and forgets that of its base."""

    def __init__(self, order: int) -> None:
        self.order = order


def execute(statement: str) -> Any:
    with connection.cursor() as cursor:
        cursor.execute(statement)
        return cursor.fetchall() if cursor.description else None


def left_by_handler(row: Any, ctx: Any) -> Any:
    """Leave something on the connection."""
    if row.does.startswith("sql: "):
        execute(row.does.removeprefix("sql: "))
        return "DONE"
    match row.does:
        case "raise not yet":
            raise NotYet(5)
        case "delete by another instance":
            type(row).objects.get(pk=row.pk).delete()
            return None
        case "move by another instance":
            type(row).objects.get(pk=row.pk).states.transition_to("DONE")
            return None
        case "fork":
            if (pid := os.fork()) == 0:
                os._exit(0)
            os.waitpid(pid, 0)
            return "DONE"
        case "sleep":
            time.sleep(row.seconds)
            return "DONE"
        case "sleep and raise":
            time.sleep(row.seconds)
            raise ValueError("at last")
        case "nul":
            raise ValueError("a\x00b\ud800ü")
    return row.play_as_before(ctx)


async def attack(row: Any, ctx: Any) -> Any:
    from lab.models import Run

    if row.does.startswith("sql: "):
        await sync_to_async(execute)(row.does.removeprefix("sql: "))
        await asyncio.sleep(row.seconds)
        return "DONE"
    match row.does:
        case "raise not yet":
            raise NotYet(5)
        case "cancel itself and return":
            task: Any = asyncio.current_task()
            task.cancel()
            return "DONE"
        case "cancel itself and raise":
            task = asyncio.current_task()
            task.cancel()
            raise ValueError("and raised")
        case "cancel all":
            for task in asyncio.all_tasks():
                task.cancel()
            return "DONE"
        case "iterate":
            async for _run in Run.objects.all().aiterator(chunk_size=2):
                await asyncio.sleep(0)
            return "DONE"
        case "break off":
            async for _run in Run.objects.all().aiterator(chunk_size=2):
                break
            return "DONE"
        case "ask and sleep":
            await row.mark(ctx).asave()
            await asyncio.sleep(row.seconds)
            return "DONE"
        case "gather":
            await asyncio.gather(
                *[row.mark(ctx).asave() for _ in range(20)], *[Run.objects.acount() for _ in range(20)]
            )
            return "DONE"
        case "nest":
            await sync_to_async(async_to_sync(row.mark(ctx).asave))()
            await sync_to_async(async_to_sync(sync_to_async(row.mark(ctx).save)))()
            return "DONE"
        case "outlive":

            async def later() -> None:
                await asyncio.sleep(0.3)
                await row.mark(ctx).asave()

            row.task = asyncio.create_task(later())
            await row.mark(ctx).asave()
            return "DONE"
        case "hold a transaction":
            block = transaction.atomic()
            await sync_to_async(block.__enter__)()
            await row.mark(ctx).asave()
            await asyncio.sleep(row.seconds)
            await row.mark(ctx).asave()
            await sync_to_async(block.__exit__)(None, None, None)
            return "DONE"
        case "block the loop":
            time.sleep(row.seconds)  # noqa: ASYNC251 - that is the harm
            return "DONE"
        case "to thread":
            await asyncio.gather(*[asyncio.to_thread(row.mark(ctx).save) for _ in range(5)])
            return "DONE"
        case "shut down the executor":
            loop: Any = asyncio.get_running_loop()
            loop._default_executor.shutdown(wait=False)
            return "DONE"
    return await row.perform_as_before(ctx)


def ask(row: Any) -> bool:
    """A guard that asks the database."""
    from lab.models import Noted

    return not Noted.objects.filter(pk=0).exists()


def leave(**kwargs: Any) -> None:
    raise SystemExit(3)


class Attacks(AppConfig):
    name = "tests.faults.attacks"
    label = "attacks"

    def ready(self) -> None:
        from lab import models
        from lab.models import harm
        from tests.faults.injections import injections

        AsyncStunt: Any = models.AsyncStunt  # noqa: N806 - classes that are changed, which is the point
        Stunt: Any = models.Stunt  # noqa: N806
        Act: Any = harm.Act  # noqa: N806
        Act.play_as_before = Act.play
        Act.play = left_by_handler
        AsyncStunt.perform_as_before = AsyncStunt.perform

        async def perform(self: Any, ctx: Any) -> Any:
            return await attack(self, ctx)

        AsyncStunt.perform = perform
        if injections().get("guard"):
            Stunt.ask = ask
            Stunt.states._meta.guards = {"ask": None}
        receivers = injections().get("receivers", "")
        if receivers == "failed":
            handler_failed.connect(leave)
        elif receivers == "claimed":
            leases_claimed.connect(leave)
