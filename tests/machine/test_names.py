"""What follows from the name of the status column. Migrations of users depend on every line here."""

from __future__ import annotations

import pytest

from statemachine_fields.db.columns import Names


@pytest.mark.parametrize(
    ("field", "sequence", "changed_at", "audit", "reverse"),
    [
        ("status", "status_sequence", "status_changed_at", "OrderStateTransition", "status_transitions"),
        ("state", "state_sequence", "state_changed_at", "OrderStateTransition", "state_transitions"),
        (
            "payment_status",
            "payment_sequence",
            "payment_changed_at",
            "OrderPaymentStateTransition",
            "payment_status_transitions",
        ),
        ("fuel_state", "fuel_sequence", "fuel_changed_at", "OrderFuelStateTransition", "fuel_state_transitions"),
        ("phase", "phase_sequence", "phase_changed_at", "OrderPhaseStateTransition", "phase_transitions"),
        (
            "two_words",
            "two_words_sequence",
            "two_words_changed_at",
            "OrderTwoWordsStateTransition",
            "two_words_transitions",
        ),
    ],
)
def test_names_follow_the_field(field, sequence, changed_at, audit, reverse):
    names = Names(field)
    assert names.columns == (field, sequence, changed_at)
    assert names.audit_model("Order") == audit
    assert names.reverse_accessor == reverse
