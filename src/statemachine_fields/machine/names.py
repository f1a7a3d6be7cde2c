"""What a machine's columns, audit model and reverse accessor are called. Pure Python; migrations depend on it."""

from __future__ import annotations

from dataclasses import dataclass, field

#: The field names for which `<Model>StateTransition` says enough.
PLAIN_FIELDS = ("status", "state")

#: The columns of a timed machine, in the order of the table.
CLOCK = ("next_at", "lease_owner", "lease_expires_at", "lease_token", "failures", "crashes", "error")


@dataclass(frozen=True, slots=True)
class Names:
    """The names that follow from the name of the status column.

    `status` gives `status_sequence` and `OrderStateTransition`; `payment_status` gives `payment_sequence` and
    `OrderPaymentStateTransition`; `phase` gives `phase_sequence` and `OrderPhaseStateTransition`. The columns of the
    clock are there for timed machines only.
    """

    status: str
    prefix: str = field(init=False)
    sequence: str = field(init=False)
    changed_at: str = field(init=False)
    columns: tuple[str, ...] = field(init=False)
    next_at: str = field(init=False)
    lease_owner: str = field(init=False)
    lease_expires_at: str = field(init=False)
    lease_token: str = field(init=False)
    failures: str = field(init=False)
    crashes: str = field(init=False)
    error: str = field(init=False)
    clock: tuple[str, ...] = field(init=False)
    reverse_accessor: str = field(init=False)

    def __post_init__(self) -> None:
        endings = [f"_{plain}" for plain in PLAIN_FIELDS if self.status.endswith(f"_{plain}")]
        prefix = self.status.removesuffix(endings[0]) if endings else self.status
        sequence, changed_at = f"{prefix}_sequence", f"{prefix}_changed_at"
        made: dict[str, str | tuple[str, ...]] = {
            "prefix": prefix,
            "sequence": sequence,
            "changed_at": changed_at,
            "columns": (self.status, sequence, changed_at),
            "reverse_accessor": f"{self.status}_transitions",
        }
        made.update({name: f"{prefix}_{name}" for name in CLOCK})
        made["clock"] = tuple(f"{prefix}_{name}" for name in CLOCK)
        for name, value in made.items():
            object.__setattr__(self, name, value)

    def audit_model(self, model_name: str) -> str:
        if self.status in PLAIN_FIELDS:
            return f"{model_name}StateTransition"
        words = "".join(word.capitalize() for word in self.prefix.split("_"))
        return f"{model_name}{words}StateTransition"
