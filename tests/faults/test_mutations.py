"""The mutations of `mutations.py` are of the code as it is. What they show takes minutes, and is no part of the suite."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.faults.mutations import MUTATIONS, ROOT, source_of


@pytest.mark.parametrize("mutation", MUTATIONS, ids=[mutation.name for mutation in MUTATIONS])
def test_a_mutation_finds_what_it_is_to_change(mutation):
    assert source_of(mutation).read_text().count(mutation.old) == 1
    assert mutation.old != mutation.new
    for test in mutation.tests:
        assert (ROOT / Path(test.partition("::")[0])).exists()
