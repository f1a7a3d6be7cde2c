"""Every interleaving of a small join: two children, their parent, and a worker. A step is one statement, as PostgreSQL runs it when
each sees what was committed before it began. What is searched is the protocol of `machine/joins.py` and `worker/joining.py`; each rule
of it, left out, strands a parent or makes somebody wait, and the search has to find that.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import pytest

CHILDREN = 2


@dataclass(frozen=True)
class Protocol:
    """How it is done, and what may go wrong on the way."""

    #: Whether who ends a child looks after its commit, before it within the transaction, or locks the parent before looking.
    looks: str = "after"
    #: Whether a worker that let the parent sleep looks once more.
    looks_again: bool = True
    #: Whether a look passes by a locked parent, and whether it comes back to one that was ready.
    skips_locked: bool = True
    comes_back: bool = True
    #: Whether a worker looks at all parents now and then.
    sweeps: bool = True
    #: How many processes die between a commit and their look.
    deaths: int = 0
    #: Whether somebody who is no part of it has the parent locked for a while.
    stranger: bool = False


@dataclass(frozen=True)
class World:
    """What the database has, and where everybody is."""

    ended: frozenset[int] = frozenset()
    children: tuple[str, ...] = ("runs",) * CHILDREN
    #: What each child's look has seen: whether its parent was ready.
    saw: tuple[bool, ...] = (False,) * CHILDREN
    parent: str = "due"  # due, held, asleep, moved
    worker: str = "idle"  # idle, counted, decided, slept
    locked_by: str = ""
    writes: int = 0
    deaths: int = 0
    stranger: str = "away"
    waits: bool = False

    @property
    def is_ready(self) -> bool:
        return len(self.ended) == CHILDREN

    def child(self, number: int, phase: str, **changes: object) -> World:
        phases = (*self.children[:number], phase, *self.children[number + 1 :])
        return replace(self, children=phases, **changes)  # type: ignore[arg-type]

    def wake(self) -> World:
        """Make the parent due if it sleeps: what was locked is compared again with the row as it is."""
        return replace(self, parent="due", writes=self.writes + 1) if self.parent == "asleep" else self


def steps(world: World, protocol: Protocol) -> Iterator[tuple[str, World]]:
    for number, phase in enumerate(world.children):
        for name, after in child_steps(world, protocol, number, phase):
            yield f"child {number} {name}", after
    yield from worker_steps(world, protocol)
    if protocol.sweeps and world.parent == "asleep" and world.is_ready and not world.locked_by and is_quiet(world):
        yield "sweep", world.wake()
    if protocol.stranger and world.stranger == "away" and not world.locked_by:
        yield "stranger locks", replace(world, stranger="here", locked_by="stranger")
    if world.stranger == "here":
        yield "stranger goes", replace(world, stranger="gone", locked_by="")


def is_quiet(world: World) -> bool:
    """Say whether nothing else is going to happen. The floor is far away: what needs it is to be seen to need it."""
    return all(phase == "done" for phase in world.children) and world.worker == "idle" and world.stranger != "here"


def child_steps(world: World, protocol: Protocol, number: int, phase: str) -> Iterator[tuple[str, World]]:
    me = f"child {number}"
    ended = world.ended | {number}
    if phase == "runs" and protocol.looks == "after":
        yield "commits", world.child(number, "committed", ended=ended)
    elif phase == "runs" and protocol.looks == "within":  # its own end, and those that were committed before
        saw = (*world.saw[:number], len(ended) == CHILDREN, *world.saw[number + 1 :])
        yield "looks", world.child(number, "looked", saw=saw)
    elif phase == "runs" and protocol.looks == "locked" and not world.locked_by:
        saw = (
            *world.saw[:number],
            len(ended) == CHILDREN,
            *world.saw[number + 1 :],
        )  # the snapshot of a statement that then waits
        yield "looks and waits for the lock", world.child(number, "looked", saw=saw)
    elif phase == "looked":
        after = world.child(number, "done", ended=ended)
        yield "commits", after.wake() if world.saw[number] else after
    elif phase == "committed":
        if world.deaths < protocol.deaths:
            yield "dies", world.child(number, "done", deaths=world.deaths + 1)
        saw = (*world.saw[:number], world.is_ready and world.parent == "asleep", *world.saw[number + 1 :])
        yield "looks", world.child(number, "found" if saw[number] else "done", saw=saw)
    elif phase == "found":
        if not world.locked_by:
            yield "wakes", world.child(number, "done").wake()
        elif world.locked_by != me and protocol.skips_locked:
            yield "passes by", world.child(number, "committed" if protocol.comes_back else "done")
        elif world.locked_by != me:
            yield "waits", replace(world, waits=True)


def worker_steps(world: World, protocol: Protocol) -> Iterator[tuple[str, World]]:
    if world.worker == "idle" and world.parent == "due" and not world.locked_by:
        yield "worker claims", replace(world, parent="held", worker="claimed")
    if world.worker == "claimed":
        yield "worker counts", replace(world, worker="decided" if world.is_ready else "counted")
    if world.worker == "decided" and not world.locked_by:
        yield "worker moves", replace(world, parent="moved", worker="idle", writes=world.writes + 1)
    if world.worker == "counted" and not world.locked_by:
        yield (
            "worker lets it sleep",
            replace(world, parent="asleep", worker="slept" if protocol.looks_again else "idle"),
        )
    if world.worker == "slept":
        yield (
            "worker looks again",
            replace(world, worker="idle").wake() if world.is_ready else replace(world, worker="idle"),
        )


def search(protocol: Protocol) -> tuple[int, list[list[str]], bool]:
    """Return how many worlds there are, the ways to those in which the parent is stranded, and whether somebody waits for a lock."""
    start = World()
    came_from: dict[World, tuple[str, World] | None] = {start: None}
    todo, stranded, waits = [start], [], False
    while todo:
        world = todo.pop()
        waits = waits or world.waits
        following = [(name, after) for name, after in steps(world, protocol) if after != world]
        if not following and world.parent != "moved":
            stranded.append(way_to(world, came_from))
        for name, after in following:
            if after not in came_from:
                came_from[after] = (name, world)
                todo.append(after)
    return len(came_from), stranded, waits


def way_to(world: World, came_from: dict[World, tuple[str, World] | None]) -> list[str]:
    way: list[str] = []
    step = came_from[world]
    while step is not None:
        way.append(step[0])
        step = came_from[step[1]]
    return way[::-1]


@pytest.mark.parametrize(
    "protocol",
    [
        Protocol(sweeps=False),
        Protocol(sweeps=False, stranger=True),
        Protocol(deaths=1),
        Protocol(deaths=2),
        Protocol(deaths=1, stranger=True),
    ],
    ids=str,
)
def test_no_parent_is_stranded(protocol: Protocol) -> None:
    worlds, stranded, waits = search(protocol)
    assert worlds > 30
    assert not stranded, min(stranded, key=len)
    assert not waits


@pytest.mark.parametrize(
    "protocol",
    [
        Protocol(looks="within", sweeps=False),
        Protocol(looks="locked", sweeps=False),
        Protocol(looks_again=False, sweeps=False),
        Protocol(comes_back=False, sweeps=False, stranger=True),
        Protocol(sweeps=False, deaths=1),
    ],
    ids=["looks within the transaction", "locks before it looks", "no second look", "passes by for good", "no floor"],
)
def test_each_rule_left_out_strands_a_parent(protocol: Protocol) -> None:
    _worlds, stranded, _waits = search(protocol)
    assert stranded


def test_a_plain_update_waits_for_locks() -> None:
    _worlds, _stranded, waits = search(Protocol(skips_locked=False, stranger=True))
    assert waits


def test_the_parent_is_written_no_more_than_it_is_woken_and_moved() -> None:
    start = World()
    seen, todo = {start}, [start]
    while todo:
        world = todo.pop()
        assert world.writes <= CHILDREN + 2
        for _name, after in steps(world, Protocol()):
            if after not in seen:
                seen.add(after)
                todo.append(after)
