"""Which levels a lane claims from, where rows say themselves how urgent they are or in which queue: learnt, not walked at each claim.

A level is a state, a priority and, in lanes that serve single queues, a queue. To find out which are in use takes a step into an
index for each, which a claim cannot afford that is after one row. So a process remembers them, and finds out anew

- every second, or as often as that takes no more than a hundredth of its time;
- when a claim took no row, though not for more than a tenth of its time.

A claim that took fewer rows than it wanted, and after which that was put off, may have missed rows of a level that nobody has heard of:
then the lane is looked at again as soon as it can be found out. So a row of a level that nobody used before is claimed at once by a process that has nothing else to do, and counts as soon as that in
the order of one that has. A level that is no longer used costs a step until it is forgotten. Nothing else hangs on what is known.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from statemachine_fields.db.claims import Claimed, Left, Level, NextDue, Recovered, Wanted
from statemachine_fields.db.dialect import dialect_for

if TYPE_CHECKING:
    from statemachine_fields.machine.binding import Binding
    from statemachine_fields.schedule.policy import Schedule

#: How many seconds what was learnt is good for, and for how many times as long as it took to learn it.
LEARN_EVERY, LEARN_SHARE = 1.0, 100
#: The same for a process that finds nothing to do.
LEARN_IDLE, LEARN_IDLE_SHARE = 0.0, 10
#: How many levels one statement asks for. More are asked for only if these have too few rows.
MOST_TOGETHER = 250


class Levels:
    """The levels of one lane. For one thread."""

    def __init__(
        self, bound: Binding[Any], schedules: Mapping[str, Schedule], queues: Sequence[str] | None = None
    ) -> None:
        """Serve rows of all queues, or of those named."""
        self.bound = bound
        self.schedules = schedules
        self.queues = queues
        self.members = [
            Level(state, queue) for state in schedules for queue in ([None] if queues is None else self._raw(state))
        ]
        #: Those in use, as they were learnt: those of one urgency together, the most urgent first.
        self.ranks: list[list[Level]] = []
        #: Whether the last claim has missed no row that was due, whatever its level.
        self.is_sure = True
        self._learnt_at = float("-inf")
        self._took = 0.0

    def _raw(self, state: str) -> list[str]:
        """Return what rows of a state have in their queue column that are to be served: also nothing, if the state's queue is."""
        queues = self.queues or ()
        return [*queues, *([""] if self.schedules[state].queue in queues else [])]

    def serve(self, state: str, queue: str | None) -> bool:
        """Say whether a row is served that has this in its queue column; None if that is not known."""
        return state in self.schedules and (self.queues is None or queue is None or queue in self._raw(state))

    def learn(self, connection: Any, *, later: bool = False) -> NextDue:
        """Find out which levels are in use, and whether rows of them are due.

        :param later: find out when the next row is due as well, which takes a second step for each level that has due rows.
        """
        began_at, known = time.monotonic(), self._known
        found = dialect_for(connection).survey(connection, self.bound.table, self.members, later=later)
        by_urgency: dict[int, list[Level]] = {}
        for each in found:
            by_urgency.setdefault(self._urgency(each.level), []).append(each.level)
        self.ranks = [by_urgency[urgency] for urgency in sorted(by_urgency, reverse=True)]
        self._learnt_at = time.monotonic()
        self._took = self._learnt_at - began_at
        seconds = [each.seconds for each in found if each.seconds is not None and each.seconds > 0]
        if not self.is_sure and any(each.is_due and each.level not in known for each in found):
            seconds.append(0.0)  # a row that the last claim has missed
        self.is_sure = True
        return NextDue(any(each.is_due for each in found), min(seconds, default=None))

    @property
    def _known(self) -> set[Level]:
        return {level for rank in self.ranks for level in rank}

    def _urgency(self, level: Level) -> int:
        return self.schedules[level.state].priority if level.priority is None else level.priority

    def _is_older_than(self, seconds: float, share: float) -> bool:
        return time.monotonic() - self._learnt_at >= max(seconds, share * self._took)

    def _keep_up(self, connection: Any) -> bool:
        is_due = self._is_older_than(LEARN_EVERY, LEARN_SHARE)
        if is_due:
            self.learn(connection)
        return is_due

    def claim(self, connection: Any, wanted: Wanted) -> list[Claimed]:
        """Lease due rows that nobody holds, in the order of their urgency, and of those of one urgency the one due first."""
        wanted = replace(wanted, members=self._named)
        if wanted.crashes or wanted.keys is not None:
            return dialect_for(connection).claim(connection, self.bound.table, wanted)
        is_new = self._keep_up(connection)
        known = self._known
        rows = self._claim(connection, wanted, self.ranks)
        self.is_sure = is_new or len(rows) >= wanted.limit
        if not rows and self._is_older_than(LEARN_IDLE, LEARN_IDLE_SHARE):
            self.learn(connection)
            news = [[level for level in rank if level not in known] for rank in self.ranks]
            rows += self._claim(connection, wanted, [rank for rank in news if rank])
        return rows

    def _claim(self, connection: Any, wanted: Wanted, ranks: Sequence[Sequence[Level]]) -> list[Claimed]:
        rows: list[Claimed] = []
        for part in _parts(ranks):
            some = replace(wanted, ranks=part, limit=wanted.limit - len(rows))
            rows += dialect_for(connection).claim(connection, self.bound.table, some)
            if len(rows) >= wanted.limit:
                break
        return rows

    @property
    def _named(self) -> list[Level] | None:
        return None if self.queues is None else self.members

    def candidates(self, connection: Any, wanted: Wanted) -> list[Any]:
        """Return the keys of rows that such a claim would take."""
        wanted = replace(wanted, members=self._named)
        if wanted.crashes or wanted.keys is not None:
            return dialect_for(connection).candidates(connection, self.bound.table, wanted)
        keys: list[Any] = []
        for part in _parts(self.ranks):
            some = replace(wanted, ranks=part, limit=wanted.limit - len(keys))
            keys += dialect_for(connection).candidates(connection, self.bound.table, some)
            if len(keys) >= wanted.limit:
                break
        return keys

    def next_due(self, connection: Any) -> NextDue:
        """Say whether any row is due, free or held, and when the next one is."""
        if self.queues is not None:
            return self.learn(connection, later=True)
        found = dialect_for(connection).next_due(
            connection, self.bound.table, [*self.schedules]
        )  # a step for each state
        if self.is_sure:
            return found
        seconds = max(self._learnt_at + LEARN_IDLE_SHARE * self._took - time.monotonic(), 0.0)
        return found._replace(seconds=seconds if found.seconds is None else min(seconds, found.seconds))

    def recover(self, connection: Any, left: Left) -> Recovered:
        """Take back what was left behind: rows are claimed level by level, so it is in front of those of its level."""
        if left.owner is None:
            self._keep_up(connection)
        else:
            self.learn(connection)
        rows, seen = 0, False
        for part in _parts(self.ranks):
            levels = [level for rank in part for level in rank]
            some = replace(left, levels=levels)
            found = dialect_for(connection).recover(connection, self.bound.table, [*self.schedules], some)
            rows, seen = rows + found.rows, seen or found.seen
        return Recovered(rows, seen)


def lane_parts(
    bound: Binding[Any], queues: Mapping[str, int | None] | None
) -> Iterator[tuple[str, dict[str, Schedule], Levels | None]]:
    """Yield the lanes of a machine: what the queue is called, its states, and their levels if it has some. States whose handlers are
    coroutines have a lane of their own: where threads have no time, an event loop may.

    :param queues: those named, and how many rows of each may run at once; None for all.
    """
    runs = {state: schedule for state, schedule in bound.schedules.items() if schedule.runs}
    if bound.queue_field is not None:
        for queue, named in _row_queues(queues) if runs else ():
            has_levels = named is not None or bound.priority_field is not None
            yield queue, runs, Levels(bound, runs, named) if has_levels else None
        return
    parts: dict[tuple[str, bool], dict[str, Schedule]] = {}
    for state, schedule in runs.items():
        if queues is None or schedule.queue in queues:
            # One order for all where rows say theirs themselves, or where few may run at once.
            is_one = bound.priority_field is not None or (queues is not None and queues[schedule.queue] is not None)
            parts.setdefault((schedule.queue, not is_one and schedule.is_async), {})[state] = schedule
    for (queue, _), schedules in parts.items():
        yield queue, schedules, None if bound.priority_field is None else Levels(bound, schedules)


def _row_queues(queues: Mapping[str, int | None] | None) -> list[tuple[str, tuple[str, ...] | None]]:
    """Return which queues make a lane where rows say theirs themselves, after a name for it; None for all that there are.

    One that is limited is a lane of its own. The others are one, so that their rows are claimed in the order of all of them.
    """
    if queues is None:
        return [("all queues", None)]
    lanes: list[tuple[str, tuple[str, ...] | None]] = [(each, (each,)) for each in queues if queues[each] is not None]
    others = tuple(each for each in queues if queues[each] is None)
    return [*lanes, (", ".join(others), others)] if others else lanes


def _parts(ranks: Sequence[Sequence[Level]]) -> Iterator[list[Sequence[Level]]]:
    """Yield levels in parts, each for one statement, and those of one urgency always together."""
    part: list[Sequence[Level]] = []
    count = 0
    for rank in ranks:
        if part and count + len(rank) > MOST_TOGETHER:
            yield part
            part, count = [], 0
        part.append(rank)
        count += len(rank)
    if part:
        yield part
