"""What a machine's columns, audit model and reverse accessor are called. Pure Python; migrations depend on it."""

from __future__ import annotations

from dataclasses import dataclass

#: The field names for which `<Model>StateTransition` says enough.
PLAIN_FIELDS = ("status", "state")


@dataclass(frozen=True, slots=True)
class Names:
    """The names that follow from the name of the status column.

    `status` gives `status_sequence` and `OrderStateTransition`; `payment_status` gives `payment_sequence` and
    `OrderPaymentStateTransition`; `phase` gives `phase_sequence` and `OrderPhaseStateTransition`.
    """

    status: str

    @property
    def prefix(self) -> str:
        for plain in PLAIN_FIELDS:
            if self.status.endswith(f"_{plain}"):
                return self.status.removesuffix(f"_{plain}")
        return self.status

    @property
    def sequence(self) -> str:
        return f"{self.prefix}_sequence"

    @property
    def changed_at(self) -> str:
        return f"{self.prefix}_changed_at"

    @property
    def columns(self) -> tuple[str, ...]:
        return (self.status, self.sequence, self.changed_at)

    @property
    def reverse_accessor(self) -> str:
        return f"{self.status}_transitions"

    def audit_model(self, model_name: str) -> str:
        if self.status in PLAIN_FIELDS:
            return f"{model_name}StateTransition"
        words = "".join(word.capitalize() for word in self.prefix.split("_"))
        return f"{model_name}{words}StateTransition"
