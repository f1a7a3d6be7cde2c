"""Rows of other shapes: other keys, several tables, a proxy, and handlers that use the database in other ways."""

from __future__ import annotations

import asyncio
import os
import time
import uuid
from typing import Any

from django.db import connection, models, transaction

from statemachine_fields import State, StateMachine, handler
from statemachine_fields.worker import HandlerContext


class Mark(models.Model):
    """That a handler was called for a row with a key of any kind: written by it."""

    label = models.CharField(max_length=50)
    key = models.CharField(max_length=50)
    state = models.CharField(max_length=50)
    token = models.BigIntegerField()
    pid = models.IntegerField()

    class Meta:
        indexes = [models.Index(fields=["label", "key"])]

    @classmethod
    def of(cls, row: Any, ctx: HandlerContext) -> Mark:
        return cls(label=row._meta.label, key=str(row.pk), state=row.status, token=ctx.token, pid=os.getpid())


class Shaped(models.Model):
    """NEW → DOING → DONE. The handlers leave a mark and take `pause` seconds."""

    status: str

    pause = models.FloatField(default=0)

    states = StateMachine(
        states=[State("NEW", retry_after=60), State("DOING", retry_after=60), State("DONE")],
        initial="NEW",
        transitions={"NEW": ["DOING"], "DOING": ["DONE"]},
    )

    class Meta:
        abstract = True

    @states.handler("NEW", "DOING")
    def go_on(self, ctx: HandlerContext):
        Mark.of(self, ctx).save()
        time.sleep(self.pause)
        return {"NEW": "DOING", "DOING": "DONE"}[self.status]


class Barrel(Shaped):
    """A UUID for a key."""

    id = models.UUIDField(primary_key=True, default=uuid.uuid4)


class Voucher(Shaped):
    """A text for a key."""

    code = models.CharField(primary_key=True, max_length=20)


class Shard(Shaped):
    """A table that tests split into partitions."""


class Vessel(models.Model):
    name = models.CharField(max_length=20, blank=True)


class Tanker(Vessel, Shaped):
    """A row in two tables, with the machine in the child's."""


class Wagon(Shaped):
    """The parent of the next two, with their machine."""


class Sleeper(Wagon):
    """A row in two tables, with the machine in the parent's."""

    berths = models.IntegerField(default=4)


class Express(Wagon):
    class Meta:
        proxy = True


class Lent(models.Model):
    """A base for rows whose handlers write to the database, each in its own way."""

    status: str

    pause = models.FloatField(default=0)

    states = StateMachine(
        states=[State("NEW", retry_after=60), State("DONE")], initial="NEW", transitions={"NEW": ["DONE"]}
    )

    class Meta:
        abstract = True


class Loan(Lent):
    """A handler with a transaction of its own. `leaves` says how it leaves it behind, if it does."""

    leaves = models.CharField(max_length=20, blank=True)

    @handler("NEW")
    def lend(self, ctx: HandlerContext):
        match self.leaves:
            case "block":
                transaction.atomic().__enter__()
            case "autocommit":
                connection.set_autocommit(False)
        with transaction.atomic():
            Mark.of(self, ctx).save()
            time.sleep(self.pause)
        return "DONE"


class Letter(Lent):
    """An async handler that uses the ORM."""

    @handler("NEW")
    async def post(self, ctx: HandlerContext):
        await Mark.of(self, ctx).asave()
        await asyncio.sleep(self.pause)
        return "DONE"
