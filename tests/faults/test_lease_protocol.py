"""The lease protocol, walked through every interleaving of two workers, the foreground and a hostile clock.

A race shows itself in tests with threads only when the timing is kind. Here there is no timing: the protocol is a
pure function from a world to the worlds one step away, and the search visits all of them until nothing new turns up.
The search is breadth-first, so what it finds against a weaker protocol is a shortest counter-example.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Hashable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from enum import Enum
from itertools import pairwise

import pytest

WORKERS = (1, 2)
# Two claims in one process are what it takes for a handler to outlive its lease beside its own successor.
HANDLERS_PER_WORKER = 2

SERVED = {"A": "B", "B": "C"}  # where the handler of each state moves the row
TERMINAL = "C"
ONWARD = {"A": ("B",), "B": ("C",)}
ONWARD_AND_BACK = {"A": ("B",), "B": ("A", "C")}


class Lease(Enum):
    """What `lease_expires_at` says to the database's clock: null, ahead of it, or behind it."""

    NONE = "none"
    OPEN = "open"
    EXPIRED = "expired"


@dataclass(frozen=True, slots=True)
class Row:
    """The columns that the protocol reads and writes."""

    status: str = "A"
    moves: int = 0
    token: int = 0
    owner: int | None = None
    lease: Lease = Lease.NONE
    crashes: int = 0

    def without_lease(self) -> Row:
        return replace(self, owner=None, lease=Lease.NONE)


@dataclass(frozen=True, slots=True, order=True)
class Claim:
    """What a worker remembers of a row it took, for as long as a handler or a heartbeat may still speak for it."""

    worker: int
    token: int
    from_status: str


@dataclass(frozen=True, slots=True)
class World:
    """The row, its audit records, what the workers remember, and who really holds the row.

    `holder` is the token of the claim that has neither ended nor been replaced. It belongs to the checker: no guard
    may read it, since no database has such a column.
    """

    row: Row = Row()
    history: tuple[tuple[str, str], ...] = ()
    claims: frozenset[Claim] = frozenset()
    holder: int | None = None

    def key(self) -> Hashable:
        """Return what the future depends on, so that the search ends although tokens and histories grow for ever.

        Tokens are only compared for equality and a new one is greater than all others, so their order says it all. A
        history that was in order up to here is as good as any other; the same goes for the counters.
        """
        tokens = {self.row.token, *(claim.token for claim in self.claims)}
        if self.holder is not None:
            tokens.add(self.holder)
        rank: dict[int | None, int | None] = {None: None}
        rank.update((token, number) for number, token in enumerate(sorted(tokens)))
        remembered = frozenset((claim.worker, rank[claim.token], claim.from_status) for claim in self.claims)
        row = self.row
        return row.status, row.owner, row.lease, rank[row.token], rank[self.holder], remembered


@dataclass(frozen=True, slots=True)
class Step:
    """One atomic statement, or one stroke of fate. `token` and `accepted` are those of a compare-and-set."""

    verb: str
    text: str
    token: int | None = None
    accepted: bool = True


Guard = Callable[[Row, Claim], bool]
Steps = Iterator[tuple[Step, World]]


def by_token(row: Row, claim: Claim) -> bool:
    return (row.token, row.status) == (claim.token, claim.from_status)


def by_token_of_a_lease(row: Row, claim: Claim) -> bool:
    return by_token(row, claim) and row.lease is not Lease.NONE


def by_owner(row: Row, claim: Claim) -> bool:
    return (row.owner, row.status) == (claim.worker, claim.from_status)


def unguarded(_row: Row, _claim: Claim) -> bool:
    return True


@dataclass(frozen=True, slots=True)
class Protocol:
    """The design, with a switch for each decision whose need is to be shown."""

    guard: Guard = by_token
    edges: Mapping[str, tuple[str, ...]] = field(default_factory=lambda: ONWARD_AND_BACK)
    #: A move by `transition_to` takes a new token.
    foreground_bumps: bool = True
    #: So do a commit and a release.
    ending_bumps: bool = False
    #: A claim takes rows whose lease has expired, not only free ones.
    recovers: bool = True
    #: Statements may land after the outcome of their claim: a beat that was under way, a commit whose answer was lost.
    late_statements: bool = False


def steps(protocol: Protocol, world: World) -> Steps:
    """Yield every step that can come next, with the world after it."""
    for worker in WORKERS:
        yield from claim(protocol, world, worker)
    for held in sorted(world.claims):
        for speak in (commit, release, beat):
            yield speak(protocol, world, held)
    yield from expire(world)
    yield from foreground(protocol, world)
    for worker in WORKERS:
        yield from crash(world, worker)
    for held in sorted(world.claims):
        yield forget(world, held)


def claim(protocol: Protocol, world: World, worker: int) -> Steps:
    """Take the row if it is due, and count a crash where the last claim left its lease open."""
    row = world.row
    free = row.lease is Lease.NONE or (row.lease is Lease.EXPIRED and protocol.recovers)
    hands_free = sum(held.worker == worker for held in world.claims) < HANDLERS_PER_WORKER
    if row.status not in SERVED or not free or not hands_free:
        return
    left_open = row.lease is Lease.EXPIRED
    crashes = row.crashes + left_open
    taken = replace(row, token=row.token + 1, owner=worker, lease=Lease.OPEN, crashes=crashes)
    remembered = world.claims | {Claim(worker, taken.token, row.status)}
    text = f"worker {worker} claims {row.status} with token {taken.token}"
    if left_open:
        text += ", a crash is counted"
    yield Step("claim", text), replace(world, row=taken, claims=remembered, holder=taken.token)


def commit(protocol: Protocol, world: World, held: Claim) -> tuple[Step, World]:
    """Move the row on and record it. The record says what the handler remembers: the guard must make that true."""
    to_status, row = SERVED[held.from_status], world.row
    moved = replace(row.without_lease(), status=to_status, moves=row.moves + 1, crashes=0)
    return outcome(protocol, world, held, "commit", moved, ((held.from_status, to_status),))


def release(protocol: Protocol, world: World, held: Claim) -> tuple[Step, World]:
    """Give the row back as it is."""
    return outcome(protocol, world, held, "release", world.row.without_lease())


def outcome(
    protocol: Protocol, world: World, held: Claim, verb: str, row: Row, records: tuple[tuple[str, str], ...] = ()
) -> tuple[Step, World]:
    """End a claim, if the guard allows. Whatever the answer, a worker without late statements is done with it."""
    accepted = protocol.guard(world.row, held)
    after = world if protocol.late_statements else replace(world, claims=world.claims - {held})
    if accepted:
        row = replace(row, token=row.token + protocol.ending_bumps)
        after = replace(after, row=row, history=world.history + records, holder=None)
    return statement(verb, held, accepted), after


def beat(protocol: Protocol, world: World, held: Claim) -> tuple[Step, World]:
    """Push the expiry of the lease ahead of the clock."""
    accepted = protocol.guard(world.row, held)
    row = replace(world.row, lease=Lease.OPEN) if accepted else world.row
    return statement("beat", held, accepted), replace(world, row=row)


def statement(verb: str, held: Claim, accepted: bool) -> Step:
    answer = "accepted" if accepted else "refused"
    return Step(verb, f"worker {held.worker} {verb}s with token {held.token}: {answer}", held.token, accepted)


def forget(world: World, held: Claim) -> tuple[Step, World]:
    """Let a handler end without a word, and its process live on."""
    step = Step("forget", f"worker {held.worker} forgets token {held.token}")
    return step, replace(world, claims=world.claims - {held})


def crash(world: World, worker: int) -> Steps:
    """Kill a worker. What it had sent before may still land: that is the interleaving in which it dies later."""
    left = frozenset(held for held in world.claims if held.worker != worker)
    if left != world.claims:
        yield Step("crash", f"worker {worker} crashes"), replace(world, claims=left)


def expire(world: World) -> Steps:
    """Let the lease run out. The clock is hostile: it may do so at any time."""
    if world.row.lease is Lease.OPEN:
        yield Step("expire", "the lease expires"), replace(world, row=replace(world.row, lease=Lease.EXPIRED))


def foreground(protocol: Protocol, world: World) -> Steps:
    """Move the row by `transition_to`, judged by the row and ending whatever lease it finds."""
    row = world.row
    for to_status in protocol.edges.get(row.status, ()):
        moved = replace(
            row.without_lease(), status=to_status, moves=row.moves + 1, token=row.token + protocol.foreground_bumps
        )
        records = (*world.history, (row.status, to_status))
        step = Step("foreground", f"the foreground moves {row.status} to {to_status}")
        yield step, replace(world, row=moved, history=records, holder=None)


Invariant = Callable[[World, Step, World], bool]


def only_the_current_claim_is_heard(before: World, step: Step, _after: World) -> bool:
    """I1: a statement is accepted exactly if its claim holds the row, so each claim has one outcome at most."""
    return step.token is None or step.accepted == (step.token == before.holder)


def nobody_releases_the_lease_of_another(before: World, step: Step, after: World) -> bool:
    """I1 again, for the statement that does its harm without a trace in the history."""
    stale = step.verb == "release" and before.holder not in (None, step.token)
    return not stale or after.row == before.row


def the_history_is_an_unbroken_chain(_before: World, _step: Step, after: World) -> bool:
    """I2: from the initial state to the current one, with as many records as moves."""
    chain = [("", Row().status), *after.history, (after.row.status, "")]
    return len(after.history) == after.row.moves and all(one[1] == other[0] for one, other in pairwise(chain))


def a_terminal_row_stays(before: World, _step: Step, after: World) -> bool:
    """I4: not one column of it changes."""
    return before.row.status != TERMINAL or after.row == before.row


def crashes_are_claims_without_an_outcome(before: World, step: Step, after: World) -> bool:
    """Count neither a graceful release nor a foreground move, and miss no crash: I5 bounds poison by this number."""
    counted = after.row.crashes > before.row.crashes
    return counted == (step.verb == "claim" and before.holder is not None)


INVARIANTS: tuple[Invariant, ...] = (
    only_the_current_claim_is_heard,
    nobody_releases_the_lease_of_another,
    the_history_is_an_unbroken_chain,
    a_terminal_row_stays,
    crashes_are_claims_without_an_outcome,
)


@dataclass
class Search:
    """What a search has met: each world by its key, the step that first led there, and the way back."""

    came_by: dict[Hashable, tuple[Hashable, Step] | None]
    worker_steps_into: dict[Hashable, set[Hashable]] = field(default_factory=dict)
    met: set[tuple[str, bool]] = field(default_factory=set)
    done: set[Hashable] = field(default_factory=set)
    counter_example: list[str] | None = None

    def trace(self, key: Hashable) -> list[str]:
        """Tell the shortest way to a world."""
        told = []
        while (origin := self.came_by[key]) is not None:
            key, step = origin
            told.append(step.text)
        return told[::-1]

    def stranded(self) -> list[str] | None:
        """I3: tell the shortest way to a world from which the workers alone cannot bring the row to its end.

        The foreground does not count: it could always move the row by hand.
        """
        hopeful = set(self.done)
        waiting = list(hopeful)
        while waiting:
            earlier = self.worker_steps_into.get(waiting.pop(), set()) - hopeful
            hopeful |= earlier
            waiting.extend(earlier)
        return next((self.trace(key) for key in self.came_by if key not in hopeful), None)


def search(protocol: Protocol, *invariants: Invariant) -> Search:
    """Visit every world that the protocol can reach, nearest first; stop at the first step that breaks an invariant."""
    start = World()
    found = Search({start.key(): None})
    waiting = deque([start])
    while waiting:
        before = waiting.popleft()
        here = before.key()
        for step, after in steps(protocol, before):
            found.met.add((step.verb, step.accepted))
            if not all(holds(before, step, after) for holds in invariants):
                found.counter_example = [*found.trace(here), step.text]
                return found
            there = after.key()
            if step.verb != "foreground":
                found.worker_steps_into.setdefault(there, set()).add(here)
            if there not in found.came_by:
                found.came_by[there] = (here, step)
                waiting.append(after)
                if after.row.status == TERMINAL:
                    found.done.add(there)
    return found


@pytest.mark.parametrize(
    "protocol",
    [
        pytest.param(Protocol(), id="token"),
        pytest.param(Protocol(by_token_of_a_lease, late_statements=True), id="token of a lease, late statements"),
        pytest.param(Protocol(ending_bumps=True, late_statements=True), id="token spent at the end, late statements"),
    ],
)
def test_the_token_holds_in_every_interleaving(protocol):
    found = search(protocol, *INVARIANTS)
    assert found.counter_example is None
    assert found.stranded() is None
    # All of it was put to the test: each statement was accepted somewhere and refused elsewhere.
    compared = {(verb, accepted) for verb in ("commit", "release", "beat") for accepted in (True, False)}
    assert found.met == compared | {(verb, True) for verb in ("claim", "forget", "crash", "expire", "foreground")}


@pytest.mark.parametrize(
    ("invariant", "last_words"),
    [
        (only_the_current_claim_is_heard, "worker 1 commits with token 1: accepted"),
        (nobody_releases_the_lease_of_another, "worker 1 releases with token 1: accepted"),
    ],
)
def test_the_owner_is_no_proof_of_a_claim(invariant, last_words):
    """A worker that takes its own row again has the same name as before, and so has the handler it gave up."""
    assert search(Protocol(by_owner), invariant).counter_example == [
        "worker 1 claims A with token 1",
        "the lease expires",
        "worker 1 claims A with token 2, a crash is counted",
        last_words,
    ]


@pytest.mark.parametrize(
    ("invariant", "counter_example"),
    [
        (
            only_the_current_claim_is_heard,
            [
                "worker 1 claims A with token 1",
                "the foreground moves A to B",
                "worker 1 commits with token 1: accepted",
            ],
        ),
        (
            nobody_releases_the_lease_of_another,
            [
                "worker 1 claims A with token 1",
                "the lease expires",
                "worker 1 claims A with token 2, a crash is counted",
                "worker 1 releases with token 1: accepted",
            ],
        ),
        (
            the_history_is_an_unbroken_chain,
            [
                "worker 1 claims A with token 1",
                "the foreground moves A to B",
                "worker 1 commits with token 1: accepted",
            ],
        ),
        (
            a_terminal_row_stays,
            [
                "worker 1 claims A with token 1",
                "the foreground moves A to B",
                "the foreground moves B to C",
                "worker 1 commits with token 1: accepted",
            ],
        ),
    ],
)
def test_without_a_guard_nothing_holds(invariant, counter_example):
    assert search(Protocol(unguarded), invariant).counter_example == counter_example


def test_a_foreground_move_takes_a_new_token():
    """Else a row that was moved away and back looks to the old handler as if nothing had happened."""
    assert search(Protocol(foreground_bumps=False), *INVARIANTS).counter_example == [
        "worker 1 claims A with token 1",
        "the foreground moves A to B",
        "the foreground moves B to A",
        "worker 1 commits with token 1: accepted",
    ]


def test_the_status_is_proof_enough_where_no_edge_leads_back():
    assert search(Protocol(foreground_bumps=False, edges=ONWARD), *INVARIANTS).counter_example is None


@pytest.mark.parametrize(
    ("invariant", "counter_example"),
    [
        (
            only_the_current_claim_is_heard,
            [
                "worker 1 claims A with token 1",
                "worker 1 releases with token 1: accepted",
                "worker 1 commits with token 1: accepted",
            ],
        ),
        (
            crashes_are_claims_without_an_outcome,
            [
                "worker 1 claims A with token 1",
                "worker 1 releases with token 1: accepted",
                "worker 1 beats with token 1: accepted",
                "the lease expires",
                "worker 1 claims A with token 2, a crash is counted",
            ],
        ),
    ],
)
def test_a_token_proves_nothing_once_its_lease_has_ended(invariant, counter_example):
    """A release leaves status and token as they were, so a beat under way in another thread opens the lease again.

    Either the guard asks for a lease as well, or the statement that ends one takes a new token.
    """
    assert search(Protocol(late_statements=True), invariant).counter_example == counter_example


def test_a_guard_that_asks_for_a_lease_needs_no_new_token_for_foreground_moves():
    """They end the lease, and whoever opens the next one takes a new token."""
    protocol = Protocol(by_token_of_a_lease, foreground_bumps=False, late_statements=True)
    assert search(protocol, *INVARIANTS).counter_example is None


def test_a_crash_strands_the_row_unless_claims_recover_it():
    found = search(Protocol(recovers=False), *INVARIANTS)
    assert found.counter_example is None
    assert found.stranded() == ["worker 1 claims A with token 1", "worker 1 crashes"]
