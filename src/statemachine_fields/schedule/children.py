"""`Children(...)`: rows that wait for other rows, and how many of those are where. Pure Python."""

from __future__ import annotations

import enum
from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Any, Literal, TypeAlias

from statemachine_fields.schedule.waiting import Until

Need: TypeAlias = "Literal['all', 'any'] | int"

#: How many seconds it takes at most until a worker looks by itself, whatever was missed.
FLOOR_SECONDS = 30.0


class Decision(enum.Enum):
    """What the children of a row come to."""

    WAITS = enum.auto()
    MET = enum.auto()
    #: It can no longer be met.
    FAILED = enum.auto()


class Children(Until):
    """Let rows wait for other rows, whose foreign key points at them.

    A child is finished in a terminal state. `need` says how many must be so, besides those that are in a state of `failed`. With a
    handler on the state, it is run when that is decided, and finds the counts in `ctx.children`; without one `then` moves the row.

    :param relation: the name under which the row has its children, as `parcels` of `order.parcels`.
    :param need: `"all"`, which no children satisfy, too; `"any"`; or how many.
    :param failed: the terminal states of a child that count as failures.
    :param then: where the row goes when there are as many as it needs.
    :param failed_to: where it goes as soon as there cannot be. If not given, the handler decides; without one the row is parked.
    :param cancel_to: where children go that were there when the row left the state, however it left, and are unfinished.
    :param machine: the name of the children's machine, if they have several.
    :raises ValueError: what is wrong in itself. What depends on the children's model is a system check.
    """

    looks_every = FLOOR_SECONDS

    def __init__(
        self,
        relation: str,
        *,
        need: Need = "all",
        failed: Iterable[str] = (),
        then: str | None = None,
        failed_to: str | None = None,
        cancel_to: str | None = None,
        machine: str | None = None,
    ) -> None:
        if not isinstance(relation, str) or not relation.isidentifier():
            raise ValueError(
                f"Children needs the name of a relation, as 'parcels' for the rows of order.parcels, got {relation!r}."
            )
        is_number = isinstance(need, int) and not isinstance(need, bool)
        if not (need >= 1 if is_number else need in ("all", "any")):  # type: ignore[operator]
            raise ValueError(f"need must be 'all', 'any' or a whole number of at least 1, got {need!r}.")
        if isinstance(failed, str) and not isinstance(failed, enum.Enum):
            raise ValueError(f"failed must be a list of states of the children, got {failed!r}. Write [{failed!r}].")
        for option, name in (("then", then), ("failed_to", failed_to), ("cancel_to", cancel_to), ("machine", machine)):
            if name is not None and (not isinstance(name, str) or not name):
                raise ValueError(f"{option} must be a name, got {name!r}.")
        self.relation = relation
        self.need = need
        self.failed = tuple(_plain(state) for state in failed)
        self.then = None if then is None else _plain(then)
        self.failed_to = None if failed_to is None else _plain(failed_to)
        self.cancel_to = None if cancel_to is None else _plain(cancel_to)
        self.machine = machine
        if not all(isinstance(state, str) and state for state in self.failed):
            raise ValueError(f"failed must be a list of states of the children, got {failed!r}.")

    @property
    def features(self) -> tuple[str, ...]:  # type: ignore[override]  # others have the same whatever they are given
        return () if self.cancel_to is None else ("cancels",)

    @property
    def targets(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(state for state in (self.then, self.failed_to) if state is not None))

    @property
    def needs_handler(self) -> bool:
        return self.then is None

    def decide(self, *, succeeded: int, failed: int, unfinished: int) -> Decision:
        """Say what so many children come to."""
        if self.need == "all":
            if failed:
                return Decision.FAILED
            return Decision.WAITS if unfinished else Decision.MET
        need = self.need if isinstance(self.need, int) else 1
        if succeeded >= need:
            return Decision.MET
        return Decision.WAITS if succeeded + unfinished >= need else Decision.FAILED

    def __str__(self) -> str:
        return f"{self.need} of its {self.relation}"

    def words_for(self, target: str) -> str:
        if target == self.then:
            return f"when {self} are done" if self.need != "any" else f"when {self} is done"
        return f"when there cannot be {self}"

    def _given(self) -> tuple[Any, ...]:
        return self.relation, self.need, self.failed, self.then, self.failed_to, self.cancel_to, self.machine

    def __repr__(self) -> str:
        defaults = {"need": "all", "failed": ()}
        names = ("need", "failed", "then", "failed_to", "cancel_to", "machine")
        given = {
            name: value for name, value in zip(names, self._given()[1:], strict=True) if value != defaults.get(name)
        }
        return f"Children({', '.join([repr(self.relation), *(f'{name}={value!r}' for name, value in given.items())])})"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Children) and self._given() == other._given()

    def __hash__(self) -> int:
        return hash(self._given())


class ChildCounts(Mapping[str, int]):
    """How many children of a row are in each state, and what that comes to. States in which there is none are left out."""

    __slots__ = ("_by_state", "_failing", "_terminal", "_until")

    def __init__(self, until: Children, terminal: Collection[str], by_state: Mapping[str, int]) -> None:
        self._until = until
        self._terminal = frozenset(terminal)
        self._failing = frozenset(until.failed)
        self._by_state = {state: number for state, number in by_state.items() if number}

    def __getitem__(self, state: str) -> int:
        return self._by_state[state]

    def __iter__(self) -> Iterator[str]:
        return iter(self._by_state)

    def __len__(self) -> int:
        return len(self._by_state)

    def __repr__(self) -> str:
        return f"ChildCounts({self._by_state})"

    @property
    def total(self) -> int:
        return sum(self._by_state.values())

    @property
    def finished(self) -> int:
        """How many are in a terminal state."""
        return sum(number for state, number in self._by_state.items() if state in self._terminal)

    @property
    def unfinished(self) -> int:
        return self.total - self.finished

    @property
    def failed(self) -> int:
        """How many of those that are finished count as failures."""
        return sum(number for state, number in self._by_state.items() if state in self._failing)

    @property
    def succeeded(self) -> int:
        return self.finished - self.failed

    @property
    def is_met(self) -> bool:
        """Whether there are as many as the row needs."""
        return self.decision is Decision.MET

    @property
    def decision(self) -> Decision:
        return self._until.decide(succeeded=self.succeeded, failed=self.failed, unfinished=self.unfinished)


def _plain(state: Any) -> Any:
    """Return the bare string behind an enum member. `policy` has the same, and imports what this module stands on."""
    return str(state.value) if isinstance(state, enum.Enum) else state
