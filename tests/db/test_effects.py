"""An effect leaves the same row whoever writes it: one row by itself, many at once, or a queryset."""

from __future__ import annotations

import datetime
import inspect

import pytest
from django.db import connection, models, transaction
from django.utils import timezone
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from lab.models import Audited, Lot, Petition
from statemachine_fields.db import effects
from statemachine_fields.db.columns import EMPTY, FEATURES
from statemachine_fields.db.dialect import RowWriteKind, dialect_for
from statemachine_fields.db.effects import (
    ANNOUNCE,
    BEAT,
    CLAIM,
    ENTER,
    ENTER_CLAIMED,
    RECOVER,
    RELEASE,
    RUN_AT,
    STAY,
    UNCLAIM,
    Becomes,
    Effect,
    Terms,
)
from statemachine_fields.db.expressions import MachineValue

EFFECTS = [effect for _name, effect in inspect.getmembers(effects) if isinstance(effect, Effect)]
#: Those that any of the three can write. Of the others the writer of many rows alone knows the horizon, or whom to blame.
COMMON = [effect for effect in EFFECTS if not {Becomes.LATER_OR_HORIZON, Becomes.BLAME} & {*effect.changes.values()}]
#: Whatever ends a lease.
ENDS = [ENTER, ANNOUNCE, STAY, RELEASE, UNCLAIM, RECOVER]
TERMS = Terms(
    now="now",
    later="in({seconds})",
    no_later="in({seconds} by {entered} and {horizon})",
    unseen="unseen({inbox}, {seen}, {seconds})",
)
TIMED, UNTIMED, WAITING = Lot.states._meta, Audited.states._meta, Petition.states._meta

each_effect = pytest.mark.parametrize("effect", EFFECTS, ids=str)
each_machine = pytest.mark.parametrize("bound", [TIMED, UNTIMED, WAITING], ids=["timed", "not timed", "with an inbox"])


def quoted(bound):
    return {column: f'"{column}"' for column in bound.table.columns}


def values_of(effect, bound):
    """Return something for all that an effect wants."""
    return {column: f"some {column}" for column in effect.wants(bound.table.columns)}


class TestWords:
    @each_effect
    def test_there_is_a_column_for_each(self, effect):
        assert {*effect.changes} <= {column for columns in FEATURES.values() for column in columns}

    @pytest.mark.parametrize("effect", ENDS, ids=str)
    def test_what_ends_a_lease_leaves_nothing_of_it_and_raises_the_token(self, effect):
        assert effect.changes["lease_token"] is Becomes.RAISED
        assert effect.changes["lease_owner"] is effect.changes["lease_expires_at"] is Becomes.EMPTY

    @each_effect
    def test_only_what_takes_or_ends_a_lease_raises_the_token(self, effect):
        assert ("lease_token" in effect.changes) == (effect in [*ENDS, CLAIM, ENTER_CLAIMED])

    @each_effect
    def test_an_effect_that_counts_a_move_says_when_it_was(self, effect):
        is_move = effect in (ENTER, ANNOUNCE, ENTER_CLAIMED)
        assert ("sequence" in effect.changes) == ("changed_at" in effect.changes) == is_move

    def test_to_enter_claimed_is_to_enter_and_to_claim(self):
        """What both set, the claim does, which comes later."""
        assert ENTER_CLAIMED.changes == {**ENTER.changes, **CLAIM.changes}


@each_effect
@each_machine
class TestAgreement:
    def test_every_way_names_the_same_columns(self, effect, bound):
        names = quoted(bound)
        said = [change.split(" = ") for change in effect.as_sql(names, TERMS, given="given.{}").split(", ") if change]
        written = [name.strip('"') for name, *becomes in said if becomes]
        assert written == [column for column in effect.changes if column in bound.table.columns]
        if effect in COMMON:
            changes = effect.as_update(bound.names, bound.table.columns, **values_of(effect, bound))
            assert [*changes] == [getattr(bound.names, column) for column in written]

    def test_there_is_a_parameter_for_all_that_is_wanted_and_for_no_more(self, effect, bound):
        wants = effect.wants(bound.table.columns)
        expected = len(wants) + sum(
            effect.changes.get(column) in (Becomes.LATER_OR_HORIZON, Becomes.BLAME) for column in wants
        )
        assert effect.as_sql(quoted(bound), TERMS).count("%s") == expected
        assert effect.as_sql(quoted(bound), TERMS, also=['"x"', '"y"']).count("%s") == expected + 2

    def test_what_many_rows_are_given_is_what_is_wanted(self, effect, bound):
        text = effect.as_sql(quoted(bound), TERMS, given="given.{}")
        for column in effect.wants(bound.table.columns):
            assert f"given.{column}" in text

    def test_an_instance_has_empty_what_the_row_has_empty(self, effect, bound):
        emptied = effect.empties(bound.names, bound.table.columns)
        literals = {"None": "NULL", "": "''", "0": "0", "False": "FALSE"}
        said = {
            f'"{column}" = {literals[str(EMPTY[column])]}'
            for column in EMPTY
            if getattr(bound.names, column) in emptied
        }
        changes = {*effect.as_sql(quoted(bound), TERMS, given="given.{}").split(", ")}
        assert said == {change for change in changes if change.split(" = ")[-1] in literals.values()}
        assert emptied == {name: EMPTY[column] for column in EMPTY if (name := getattr(bound.names, column)) in emptied}


@pytest.mark.parametrize("effect", [effect for effect in EFFECTS if effect not in COMMON], ids=str)
def test_a_queryset_cannot_be_told_what_only_a_statement_over_rows_can_say(effect):
    columns = TIMED.table.columns
    with pytest.raises(TypeError, match=effect.name):
        effect.as_update(TIMED.names, columns, **dict.fromkeys(effect.wants(columns), 1))


def field_of(bound, column):
    return bound.model._meta.get_field(getattr(bound.names, column))


def stored(bound, column):
    """Return what a column may hold."""
    field = field_of(bound, column)
    if column == "status":
        return st.just(bound.graph.initial)
    if isinstance(field, models.DateTimeField):
        times = st.integers(-1000, 1000).map(lambda seconds: timezone.now() + datetime.timedelta(seconds=seconds))
        return st.none() | times if field.null else times
    if isinstance(field, models.BooleanField):
        return st.booleans()
    return st.integers(0, 9) if isinstance(field, models.IntegerField) else st.text("ab'\"%\\", max_size=20)


def told(bound, column, becomes):
    """Return what a column may be given, or what an inbox is compared with."""
    if column == "seen":
        return st.none() | st.integers(0, 9)
    if becomes in (Becomes.LATER, Becomes.DUE):
        return st.floats(0, 1000) | st.none() if field_of(bound, column).null else st.floats(0, 1000)
    return st.sampled_from([*bound.graph.states]) if column == "status" else stored(bound, column)


def rows_of(bound, effect):
    columns = bound.table.columns
    before = st.fixed_dictionaries({column: stored(bound, column) for column in columns})
    changes = {column: told(bound, column, effect.changes.get(column)) for column in effect.wants(columns)}
    return st.tuples(before, st.fixed_dictionaries(changes))


def make_row(bound, before):
    row = bound.model.objects.create()
    rows = bound.model.objects.filter(pk=row.pk)
    rows.update(**{getattr(bound.names, column): MachineValue(value) for column, value in before.items()})
    return row.pk


def state_of(bound, key):
    names = {column: getattr(bound.names, column) for column in bound.table.columns}
    found = bound.model.objects.values(*names.values()).get(pk=key)
    return {column: found[name] for column, name in names.items()}


def is_same(one, other):
    if isinstance(one, datetime.datetime) and isinstance(other, datetime.datetime):
        return abs(one - other) < datetime.timedelta(seconds=30)
    return one == other


def is_unseen(before, given_values):
    """Say whether there is more in the inbox than the caller has seen, if that is to be compared."""
    seen = given_values.get("seen")
    return seen is not None and before["inbox"] > seen


def prepared(bound, column, becomes, value):
    """Return a value as a statement takes it."""
    if column == "seen" or becomes in (Becomes.LATER, Becomes.DUE):
        return value
    return field_of(bound, column).get_db_prep_save(MachineValue(value), connection)


def write_alone(bound, effect, key, before, given):
    wants = effect.wants(bound.table.columns)  # in that order
    values = tuple(prepared(bound, column, effect.changes.get(column), given[column]) for column in wants)
    write = dialect_for(connection).row_write(connection, RowWriteKind(bound.table, effect, records=False))
    return write(connection, key, values, (before["status"],), ()) is not None


def write_many(bound, effect, key, before, given):
    rows = {"key": [key], "was_status": [before["status"]], **{column: [value] for column, value in given.items()}}
    dialect = dialect_for(connection)
    return dialect.write_rows(connection, bound.table, effect, rows, compares=("status",)) == {key}


def write_queryset(bound, effect, key, before, given):
    rows = bound.model.objects.filter(pk=key, status=before["status"])
    return rows.update(**effect.as_update(bound.names, bound.table.columns, **given)) == 1


def write_and_read_many(bound, effect, key, before, given):
    """As many rows, and what is read is what is there then."""
    rows = {"key": [key], "was_status": [before["status"]], **{column: [value] for column, value in given.items()}}
    fields = tuple(bound.model._meta.concrete_fields)
    found = dialect_for(connection).write_and_read_rows(
        connection, bound.table, effect, rows, fields, compares=("status",)
    )
    if connection.vendor == "postgresql":  # elsewhere the converters of the fields have not seen the values yet
        names = [field.attname for field in fields]
        read = {key: dict(zip(names, claimed.values, strict=True)) for key, claimed in found.items()}
        for row in read.values():
            there = state_of(bound, key)
            assert {column: row[getattr(bound.names, column)] for column in there} == there
    return {*found} == {key}


WAYS = {
    "one row": write_alone,
    "many rows": write_many,
    "many rows that are read": write_and_read_many,
    "a queryset": write_queryset,
}


@pytest.mark.django_db
@pytest.mark.parametrize(
    ("bound", "effect"),
    [(bound, effect) for bound in (TIMED, UNTIMED, WAITING) for effect in COMMON if effect.on(bound.table.columns)],
    ids=str,
)
def test_the_same_row_comes_of_it_whoever_writes(bound, effect):
    ways = dict(WAYS)
    if effect is RUN_AT or not bound.is_timed:  # which no statement over many rows writes
        del ways["many rows"]
    if effect is not ENTER_CLAIMED or not bound.is_timed:  # of the others not all leave the row leased
        del ways["many rows that are read"]
    if effect in (CLAIM, BEAT, ENTER_CLAIMED):  # which the columns let nobody else write
        del ways["a queryset"]

    @settings(max_examples=40, deadline=None, suppress_health_check=[*HealthCheck])
    @given(rows_of(bound, effect))
    def check(row):
        before, given_values = row
        with transaction.atomic():
            afterwards = {}
            for name, write in ways.items():
                key = make_row(bound, before)
                assert write(bound, effect, key, before, given_values), name
                afterwards[name] = state_of(bound, key)
            transaction.set_rollback(True)
        _name, expected = afterwards.popitem()
        for name, found in afterwards.items():
            differing = {column for column in found if not is_same(found[column], expected[column])}
            assert not differing, (name, found, expected)
        untouched = {column for column in before if column not in effect.changes}
        assert all(is_same(expected[column], before[column]) for column in untouched)
        for column, becomes in effect.on(bound.table.columns).items():
            if becomes is Becomes.RAISED:
                assert expected[column] == before[column] + 1
            elif becomes is Becomes.LOWERED:
                assert expected[column] == before[column] - 1
            elif becomes is Becomes.EMPTY:
                assert expected[column] == EMPTY[column]
            elif becomes is Becomes.TRUE:
                assert expected[column] is True
            elif becomes is Becomes.GIVEN:
                assert is_same(expected[column], given_values[column])
            elif becomes is Becomes.NOW or (becomes is Becomes.DUE and is_unseen(before, given_values)):
                assert is_same(expected[column], timezone.now())
            elif given_values[column] is None:
                assert expected[column] is None
            else:
                assert is_same(expected[column], timezone.now() + datetime.timedelta(seconds=given_values[column]))

    check()


@pytest.mark.django_db
@pytest.mark.parametrize("way", WAYS)
def test_what_is_compared_must_be_as_it_was(way):
    key = make_row(TIMED, {})
    before = state_of(TIMED, key)
    assert not WAYS[way](TIMED, RELEASE, key, {"status": "SOLD"}, {})
    assert state_of(TIMED, key) == before


@pytest.mark.django_db
@pytest.mark.parametrize("compared", ["status", "sequence", "lease_token", "failures"])
def test_many_rows_are_each_compared_with_what_is_said_of_it(compared):
    keys = [make_row(TIMED, {}) for _ in range(3)]
    was = [state_of(TIMED, key)[compared] for key in keys]
    was[1] = "SOLD" if compared == "status" else 7
    rows = {"key": keys, f"was_{compared}": was}
    done = dialect_for(connection).write_rows(connection, TIMED.table, RELEASE, rows, compares=(compared,))
    assert done == {keys[0], keys[2]}
    assert [state_of(TIMED, key)["lease_token"] for key in keys] == [1, 0, 1]


@pytest.mark.django_db
@pytest.mark.parametrize(
    ("delay", "horizon", "due"), [(60, None, 60), (None, 500, 400), (60, 500, 60), (600, 500, 400), (None, None, None)]
)
def test_a_row_that_stays_is_due_after_the_delay_or_when_its_time_is_up(delay, horizon, due):
    key = make_row(TIMED, {"changed_at": timezone.now() - datetime.timedelta(seconds=100)})
    rows = {"failures": [2], "error": ["no"], "next_at": [delay], "horizon": [horizon]}
    dialect_for(connection).write_rows(connection, TIMED.table, STAY, {"key": [key], "was_lease_token": [0], **rows})
    found = state_of(TIMED, key)
    expected = None if due is None else timezone.now() + datetime.timedelta(seconds=due)
    assert is_same(found["next_at"], expected)
    assert (found["failures"], found["error"], found["lease_token"]) == (2, "no", 1)
