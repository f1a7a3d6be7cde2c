"""Take one guard out of the code at a time, and see that a test fails: `python -m tests.faults.mutations [NAME ...]`.

A guard that no test misses is no guard, or not tested. Each mutation is applied to a copy of `src/`, which the tests and
the workers that they start import in place of the real one. Prints a table in Markdown; fails if a mutation survives.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass, replace
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
PACKAGE = "statemachine_fields"

#: How many seconds the tests of one mutation may take. Without some guards, something is waited for that never comes.
LONGEST = 300.0

#: How many seconds a test waits for what may never come, as text.
PATIENCE = "30"

WRITER = "db/postgresql.py"
EFFECTS = "db/effects.py"
CLAIMS = "db/postgresql_claims.py"
PLAN = "machine/plan.py"
LEASES = "tests/worker/test_leases.py"
EFFECT_TESTS = "tests/db/test_effects.py"
PLAN_TESTS = "tests/machine/test_plan.py"
JUDGE_TESTS = "tests/machine/test_judge.py"
RACES = "tests/faults/test_races.py"
LATE = "tests/faults/test_late.py::test_an_old_token_is_worth_nothing"
CUT_OFF = "tests/faults/test_late.py::test_a_worker_cut_off_from_its_heartbeat_does_not_start_what_it_may_have_lost"
COMMIT = "tests/worker/test_commit.py"
CLAIMING = "tests/worker/test_claiming.py"
OWN = "tests/worker/test_own.py"
CONNECTIONS = "tests/worker/test_connections.py"
COROUTINES = "tests/worker/test_coroutines.py"
BUFFER = "tests/worker/test_buffer.py"
RUNNER = "tests/worker/test_runner.py"
SUPERVISOR = "tests/worker/test_supervisor.py"
EXECUTOR = "tests/worker/test_executor.py"
PENDING = "tests/machine/test_pending.py"
WAKEUPS = "tests/faults/test_wakeups.py"
WAKEUPS_OF_ROWS = "tests/schedule/test_wakeups.py"
LISTENING = "tests/worker/test_listening.py"
LOOK_TIMER = "tests/worker/test_look_timer.py"
POOLER = "tests/faults/test_pooler.py"
WAITING = "tests/machine/test_waiting.py"
LIVE_KEYS = "tests/machine/test_live_keys.py"
LIVE_KEY_RACES = "tests/machine/test_live_key_races.py"
AHEAD = "worker/ahead.py"
RUN_AHEAD = "tests/worker/test_run_ahead.py"
RUN_AHEAD_FAULTS = "tests/faults/test_run_ahead.py"
ATTEMPTS = "tests/worker/test_attempts.py"
UPDATES = "tests/worker/test_updates.py"
ON_ERROR = "tests/worker/test_on_error.py"
EVENTS = "db/postgresql_events.py"
DELIVERY = "tests/machine/test_delivery.py"
INBOX = "tests/worker/test_inbox.py"
INBOX_RACES = "tests/worker/test_inbox_races.py"
JOINS = "tests/machine/test_joins.py"
CHILDREN = "tests/worker/test_children.py"
CHILDREN_FAULTS = "tests/faults/test_children.py"
LEVELS = "worker/levels.py"
LEVEL_TESTS = "tests/worker/test_levels.py"
LEVEL_PLANS = "tests/db/test_postgresql_levels.py"
QUEUES = "tests/faults/test_queues.py"


@dataclass(frozen=True)
class Mutation:
    """What to replace, once, in which file, and which tests are to notice."""

    name: str
    file: str
    old: str
    new: str
    tests: tuple[str, ...]
    #: Why no test can notice, if that is so.
    redundant: str = ""


def uncompared(name: str, effect: str, column: str, tests: tuple[str, ...]) -> Mutation:
    """Let an effect write rows whatever they have in a column."""
    new = f'for column in compares if (effect.name, column) != ("{effect}", "{column}")])'
    return Mutation(name, WRITER, "for column in compares])", new, tests)


MUTATIONS = [
    Mutation(
        "levels of one urgency are not put in the order of time",
        "db/postgresql_levels.py",
        "             ORDER BY near.next_at LIMIT %s) AS found",
        "             LIMIT %s) AS found",
        (LEVEL_TESTS,),
    ),
    Mutation(
        "the least urgent level comes first",
        LEVELS,
        "sorted(by_urgency, reverse=True)",
        "sorted(by_urgency)",
        (LEVEL_TESTS,),
    ),
    Mutation(
        "rows are run in the order of time, whatever their priority",
        "worker/claim.py",
        'rows.sort(key=lambda row: -(row.values[place["priority"]] or 0))',
        "pass",
        (LEVEL_TESTS,),
    ),
    Mutation(
        "suspects are claimed whatever their priority",
        CLAIMS,
        'urgency = "{priority} DESC, ".format(**own)',
        'urgency = ""',
        (LEVEL_TESTS,),
    ),
    Mutation(
        "suspects are claimed by who does not serve them",
        CLAIMS,
        "            whose = served\n",
        '            whose = f"({served} OR true)"\n',
        (LEVEL_TESTS,),
    ),
    Mutation(
        "a row that was set aside is claimed whatever its queue is by now",
        CLAIMS,
        'which += f" AND {served}"',
        'which += f" AND ({served} OR true)"',
        (LEVEL_TESTS,),
    ),
    Mutation(
        "rows are taken back from states, and not from levels",
        LEVELS,
        "some = replace(left, levels=levels)",
        "some = left",
        (LEVEL_TESTS,),
    ),
    Mutation(
        "what a dead process held is looked for in the levels of a while ago",
        LEVELS,
        "if left.owner is None:",
        "if True:",
        (LEVEL_TESTS,),
    ),
    Mutation(
        "who serves single queues sleeps past a row that is due after others",
        LEVELS,
        "return self.learn(connection, later=True)",
        "return self.learn(connection)",
        (LEVEL_TESTS,),
    ),
    Mutation(
        "levels are never learnt anew by who is busy",
        LEVELS,
        "is_due = self._is_older_than(LEARN_EVERY, LEARN_SHARE)",
        'is_due = self._learnt_at == float("-inf")',
        (
            LEVEL_TESTS,
            f"{QUEUES}::TestOrder::test_a_row_of_a_new_priority_does_not_wait_for_all_that_were_there_before",
        ),
    ),
    Mutation(
        "a claim that may have missed a row of a new level is not repeated",
        LEVELS,
        "self.is_sure = is_new or len(rows) >= wanted.limit",
        "self.is_sure = True",
        (LEVEL_TESTS,),
    ),
    Mutation(
        "who looked by the clock sleeps past a row of a new level",
        "worker/claiming.py",
        "elif timer.is_over or not lane.is_sure:",
        "elif timer.is_over:",
        (LEVEL_TESTS,),
    ),
    Mutation(
        "a worker stops that may have missed a row of a new level",
        "worker/claiming.py",
        "return all(lane.is_sure for lane in self.lanes)",
        "return True",
        (LEVEL_TESTS,),
    ),
    Mutation(
        "a row goes on in a lane that does not serve its queue",
        AHEAD,
        "if other.levels is None or other.serves(outcome.to_status, outcome.queue):",
        "if True:",
        (LEVEL_TESTS,),
    ),
    Mutation(
        "a row wakes those only who serve all queues",
        "schedule/wakeups.py",
        "return {gate_of(bound, EVERY_QUEUE), gate_of(bound, name)}",
        "return {gate_of(bound, EVERY_QUEUE)}",
        (LEVEL_TESTS, f"{QUEUES}::TestWakeUps"),
    ),
    Mutation(
        "all indexes are alike to the planner",
        "db/postgresql_levels.py",
        'MATCH = "{0} = wanted.{1} AND {0} >= wanted.{1}"',
        'MATCH = "{0} = wanted.{1}"',
        (LEVEL_PLANS,),
    ),
    Mutation(
        "a table is read in search of a row that is due",
        "db/postgresql_levels.py",
        "                     ORDER BY {next_at} LIMIT 1) AS first)",
        "                     LIMIT 1) AS first)",
        (LEVEL_PLANS,),
    ),
    Mutation(
        "who finds a key taken, and the row ended that had it, does not try again",
        "machine/live_keys.py",
        "MOST_TURNS = 20",
        "MOST_TURNS = 1",
        (LIVE_KEYS, LIVE_KEY_RACES),
    ),
    Mutation(
        "an INSERT that is left out breaks the caller's transaction",
        "machine/keyed_save.py",
        "connection.set_rollback(False)",
        "pass",
        (LIVE_KEYS,),
    ),
    Mutation(
        "a save that gives a row a taken key breaks the caller's transaction",
        "machine/keyed_save.py",
        "within = connection.in_atomic_block and not is_alone",
        "within = False",
        (LIVE_KEYS,),
    ),
    Mutation(
        "a move that takes a key breaks the caller's transaction",
        "machine/transitioner.py",
        "runs_code or takes_key or",
        "runs_code or",
        (LIVE_KEYS,),
    ),
    Mutation(
        "the states that give a key up are parameters",
        "db/live_keys.py",
        """        return f"NOT ({sql} IN ({', '.join(quoted(value, connection) for value in self.values)}))", tuple(params)""",
        """        return f"NOT ({sql} IN ({', '.join('%s' for _ in self.values)}))", (*params, *self.values)""",
        (LIVE_KEY_RACES,),
    ),
    Mutation(
        "a try is kept whether or not its end was written",
        "db/tries.py",
        "FROM {written} JOIN given USING (place) JOIN locked ON locked.key = given.key",
        "FROM given JOIN locked ON locked.key = given.key",
        (f"{ATTEMPTS}::TestNotKept",),
    ),
    Mutation(
        "a try whose number is there already holds up its row",
        "db/tries.py",
        "         WHERE given.outcome IS NOT NULL\n        ON CONFLICT DO NOTHING)",
        "         WHERE given.outcome IS NOT NULL)",
        (f"{ATTEMPTS}::TestCounterThatWasSetBack",),
    ),
    Mutation(
        "a crash is not kept",
        CLAIMS,
        "if table.tries is not None and left.is_crash:",
        "if False:",
        (f"{ATTEMPTS}::TestCrash",),
    ),
    Mutation(
        "what was claimed unheard and given back is kept as a crash",
        CLAIMS,
        "if table.tries is not None and left.is_crash:",
        "if table.tries is not None:",
        (f"{ATTEMPTS}::TestCrash",),
    ),
    Mutation(
        "a claim that ran no handler is kept as a try",
        "worker/attempts.py",
        "return outcome.kind if outcome.is_news or outcome.lease.started_at is not None else None",
        "return outcome.kind",
        (f"{ATTEMPTS}::TestNotKept",),
    ),
    Mutation(
        "a failure that the policy answers with a move is not kept",
        "worker/outcomes.py",
        "return ENTER_EACH if self.update else ENTER_TRIED",
        "return ENTER",
        (f"{ATTEMPTS}::TestKept",),
    ),
    Mutation(
        "drain(at=...) leaves out tries that are kept",
        "worker/draining.py",
        "not _is_quiet(outcome) or is_kept:",
        "not _is_quiet(outcome):",
        (f"{ATTEMPTS}::TestKept",),
    ),
    Mutation(
        "values of a group are cast to the length of their column, and cut in silence",
        "db/postgresql_text.py",
        "    return kind if kind in ARRAYS else None",
        "    return str(field.db_type(connection)) if kind in ARRAYS else None",
        (f"{UPDATES}::TestOneBadRow",),
    ),
    Mutation(
        "what the database computes is sent as a value",
        "worker/updates.py",
        "or is_expression(value) or not _is_plain",
        "or not _is_plain",
        (f"{UPDATES}::TestByItself",),
    ),
    Mutation(
        "rows that set different fields are one group",
        "worker/updates.py",
        "setdefault(lane, {}).setdefault(fields, UpdateGroup(fields))",
        "setdefault(lane, {}).setdefault((), UpdateGroup(fields))",
        (f"{UPDATES}::TestTogether",),
    ),
    Mutation(
        "an update that the database refuses parks the row",
        "worker/executor.py",
        "if outcome.update or (isinstance(outcome, Transitioned) and not outcome.is_by_policy):",
        "if isinstance(outcome, Transitioned) and not outcome.is_by_policy:",
        (f"{UPDATES}::TestOneBadRow",),
    ),
    Mutation(
        "a model with code of its own is written without it when a row stays",
        "worker/outcomes.py",
        "        if is_watched:\n            return STAY_ALONE\n",
        "",
        (f"{UPDATES}::TestByItself",),
    ),
    Mutation(
        "what decides on errors is asked of what is none",
        "worker/executor.py",
        "return self._excused(lease, error) or self._decide(lease, error)",
        "return self._decide(lease, error)",
        (f"{ON_ERROR}::TestNotAsked",),
    ),
    Mutation(
        "parents are looked for within the transaction that ends a child",
        "machine/joins.py",
        "            if not connection.in_atomic_block:\n                looks()",
        "            looks()",
        (JOINS,),
    ),
    Mutation(
        "parents are locked before it is asked whether they are ready",
        "machine/joins.py",
        '                found = dict(page.values_list("pk", target)[:LARGEST_KEY_LIST])\n',
        "                with transaction.atomic(using=using):\n"
        '                    free = list(skip_locked(self.rows(using).order_by("pk")).values_list("pk", flat=True))\n'
        '                    found = dict(page.filter(pk__in=free).values_list("pk", target)[:LARGEST_KEY_LIST])\n',
        (f"{CHILDREN_FAULTS}::test_a_parent_that_is_locked_for_a_while_is_found_soon_after",),
    ),
    Mutation(
        "who moves a child looks for nobody",
        "machine/parents.py",
        "        join.look_after_commit(connection, [instance])",
        "        pass",
        (JOINS,),
    ),
    Mutation(
        "who moves many children looks for nobody",
        "machine/parents.py",
        "        join.look_after_commit(connection, which=which)",
        "        pass",
        (JOINS,),
    ),
    Mutation(
        "a worker that ends a child looks for nobody",
        "machine/parents.py",
        "    if not ended:\n",
        "    if True:\n",
        (f"{CHILDREN}::TestProcesses::test_a_worker_of_the_children_wakes_the_parent_for_others",),
    ),
    Mutation(
        "who deletes a child looks for nobody",
        "machine/relations.py",
        "                join.look_after_commit(connections[using], [instance])",
        "                pass",
        (JOINS,),
    ),
    Mutation(
        "a parent that sleeps on is not looked at once more",
        "worker/joining.py",
        "            if lease.instance is not None:",
        "            if False:",
        (f"{CHILDREN}::TestJoining",),
    ),
    Mutation(
        "nobody looks at all parents now and then",
        "worker/looking.py",
        "for lane, join in self.served if sweeps else ():",
        "for lane, join in ():",
        (f"{CHILDREN}::TestProcesses",),
    ),
    Mutation(
        "a look waits for who has the parent locked",
        "db/batches.py",
        '"skip_locked": features.has_select_for_update_skip_locked',
        '"skip_locked": False',
        (f"{CHILDREN}::TestJoining::test_a_parent_that_somebody_has_locked_is_passed_by",),
    ),
    Mutation(
        "a parent that was ready and locked is passed by for good",
        "worker/looking.py",
        "self._keep(using, join, set(looked.missed), wait)",
        "pass",
        (f"{CHILDREN_FAULTS}::test_a_parent_that_is_locked_for_a_while_is_found_soon_after",),
    ),
    Mutation(
        "children are made though the row is no longer ours",
        "worker/spawning.py",
        "        if outcome.lease.key in entered:",
        "        if True:",
        (f"{CHILDREN}::TestSpawn",),
    ),
    Mutation(
        "children are made of the instances that the handler has returned",
        "worker/spawning.py",
        "[_fresh(child) for child in group]",
        "list(group)",
        (f"{CHILDREN}::TestSpawn",),
    ),
    Mutation(
        "a row that leaves children behind is not marked",
        "db/effects.py",
        '_LEFT = {"cancels": Becomes.LEFT}',
        '_LEFT = {"cancels": Becomes.EMPTY}',
        (f"{CHILDREN}::TestCancelling",),
    ),
    Mutation(
        "children are cancelled though their parent has come back",
        "worker/cancelling.py",
        "join.state != status and numbers",
        "numbers",
        (f"{CHILDREN}::TestCancelling",),
    ),
    Mutation(
        "children are cancelled because of a state that their parent left long ago",
        "worker/cancelling.py",
        ", sequence__gte=first)",
        ", sequence__gte=0)",
        (f"{CHILDREN}::TestCancelling",),
    ),
    Mutation(
        "children are cancelled that were made after their parent left",
        "worker/cancelling.py",
        "        children = children.filter(left.was_there(using))\n",
        "",
        (f"{CHILDREN}::TestCancelling",),
    ),
    Mutation(
        "children are cancelled that their parent waits for in another state",
        "worker/cancelling.py",
        "        if self.waits_again:",
        "        if False:",
        (f"{CHILDREN}::TestCancelling",),
    ),
    Mutation(
        "children that move while their parent leaves are not cancelled",
        "worker/cancelling.py",
        "        if self.waits_again:",
        "        if True:",
        (f"{CHILDREN}::TestCancelling",),
    ),
    Mutation(
        "a parent loses its mark though a child could not be cancelled",
        "worker/cancelling.py",
        "            self.is_hindered = True",
        "            pass",
        (f"{CHILDREN}::TestCancelling",),
    ),
    Mutation(
        "rows that are due at the same instant are not all looked at",
        CLAIMS,
        "if (last <= walk // 2 and not is_tied) or",
        "if last <= walk // 2 or",
        (LEASES,),
    ),
    Mutation(
        "a gate that is taken without another look",
        "worker/listening.py",
        "self._hint(Hint.GATE, [",
        "len([",
        (f"{WAKEUPS}::TestListener::test_that_is_killed_keeps_no_row_from_being_found",),
    ),
    Mutation(
        "no look after the moment in which nobody asks",
        "worker/prefetch.py",
        "self._again_at = time.monotonic() + ASK_AGAIN_AFTER + MARGIN",
        'self._again_at = float("inf")',
        (LOOK_TIMER, f"{WAKEUPS}::test_who_was_told_that_nobody_waits_costs_a_moment"),
    ),
    Mutation(
        "what is heard while it is looked is forgotten",
        "worker/prefetch.py",
        "if self._wanted_at < self.at:",
        "if False:",
        (LOOK_TIMER,),
    ),
    Mutation(
        "a worker sleeps past the time of the next row",
        "worker/claiming.py",
        "timer.sleep(None if self.options.once else lane.next_due().seconds)",
        "timer.sleep(None)",
        (f"{WAKEUPS}::test_a_row_is_run_at_the_time_it_was_given",),
    ),
    Mutation(
        "workers are told before the commit",
        "schedule/wakeups.py",
        "    if not connection.in_atomic_block:\n",
        "    if True:\n",
        (WAKEUPS_OF_ROWS,),
    ),
    Mutation(
        "who was told that nobody waits never asks again",
        "schedule/wakeups.py",
        "_quiet_until[alias, gate] = now + ASK_AGAIN_AFTER",
        "_quiet_until[alias, gate] = now + 3600",
        (WAKEUPS_OF_ROWS,),
    ),
    Mutation(
        "a message that a rollback took along counts as sent",
        "db/commits.py",
        " and callbacks[kept[0]][1] is kept[1]:",
        ":",
        (WAKEUPS_OF_ROWS,),
    ),
    Mutation(
        "those who ask collide",
        "db/postgresql_wakeups.py",
        "NOT pg_try_advisory_xact_lock_shared(gate)",
        "NOT pg_try_advisory_xact_lock(gate)",
        (WAKEUPS_OF_ROWS,),
    ),
    Mutation(
        "a gate that is left in silence",
        "db/postgresql_wakeups.py",
        "'{LEFT}' || gate",
        "'nothing'",
        (WAKEUPS_OF_ROWS,),
    ),
    Mutation(
        "a listener that listens through a pooler",
        "worker/listening.py",
        "if not connection.is_direct:",
        "if False:",
        (f"{POOLER}::test_workers_behind_a_pooler_poll_and_say_so",),
    ),
    Mutation(
        "messages that do not arrive are not missed",
        "worker/listening.py",
        'return self._give_up("messages from other connections do not arrive")',
        "return True",
        (LISTENING,),
    ),
    Mutation(
        "a new listener is not told who is idle",
        "worker/ear.py",
        "self._told.pop(lane, None)",
        "pass",
        (LISTENING, f"{WAKEUPS}::TestListener::test_that_is_killed_is_replaced_and_the_gate_is_held_again"),
    ),
    Mutation(
        "rows are kept behind handlers that do not end",
        "worker/inflight.py",
        "return self.buffer.take_back(begun) if running else []",
        "return []",
        (f"{WAKEUPS}::test_rows_that_a_busy_process_has_taken_ahead_are_left_to_an_idle_one",),
    ),
    Mutation(
        "a move by save() that does not ask the row",
        "machine/transitioner.py",
        "if not pending.is_reached(row and row[:2], self.bound, self.using):",
        "if not pending.was_saved:",
        (PENDING,),
    ),
    Mutation(
        "a row that has moved on counts as one that was there",
        "machine/pending.py",
        "return bool(left.first() == self.status)",
        "return True",
        (PENDING,),
    ),
    Mutation(
        "a pending status for whichever row is saved",
        "db/expressions.py",
        " AND {record}.{quote('instance_id')} = {key}",
        "",
        (PENDING,),
    ),
    Mutation(
        "expressions left to save()",
        "machine/transitioner.py",
        "self.left = self.updates.expressions()",
        "self.left = {}",
        (PENDING,),
    ),
    Mutation(
        "only the outermost of stacked guards",
        "machine/guards.py",
        "guards[name] = _joined(marks, machine)",
        "guards[name] = marks[-1].to",
        ("tests/machine/test_guards.py",),
    ),
    Mutation(
        "a row that goes on keeps its token",
        EFFECTS,
        '"status": Becomes.GIVEN, **_COUNTED, **_TAKEN, **_FRESH})',
        '"status": Becomes.GIVEN, **_COUNTED, **_FRESH, **dict([*_TAKEN.items()][1:])})',
        (RUN_AHEAD,),
    ),
    uncompared("ENTER CLAIMED without the token", "enter claimed", "lease_token", (RUN_AHEAD,)),
    uncompared("ENTER CLAIMED without the from-state", "enter claimed", "status", (RUN_AHEAD,)),
    Mutation(
        "a lost answer to a move that goes on is taken for written",
        "worker/commit.py",
        "            unclear = self._adopt(lane, [each for each in repeated if each.lease.key in found])\n",
        "            unclear = []\n",
        (RUN_AHEAD, RUN_AHEAD_FAULTS),
    ),
    Mutation(
        "a lost answer to a move that goes on is taken for unwritten",
        AHEAD,
        "        self.write = Write(self.enter, has_record, ADVANCERS[0])",
        "        self.write = Write(self.enter, lambda lane, outcomes: set(), ADVANCERS[0])",
        (RUN_AHEAD, RUN_AHEAD_FAULTS),
    ),
    Mutation(
        "two threads take outcomes at the same time",
        "worker/inflight.py",
        "        if not self._turn.acquire(timeout=timeout):\n            return []\n        try:\n",
        "        self._turn = threading.Lock()\n        self._turn.acquire()\n        try:\n",
        ("tests/worker/test_buffer.py",),
    ),
    Mutation(
        "a row is adopted whoever holds it",
        "worker/lease.py",
        'compares = self.bound.table, ("lease_token", "lease_owner")',
        'compares = self.bound.table, ("lease_token",)',
        (RUN_AHEAD,),
    ),
    Mutation(
        "a row is adopted whatever its token is",
        "worker/lease.py",
        'compares = self.bound.table, ("lease_token", "lease_owner")',
        'compares = self.bound.table, ("lease_owner",)',
        (RUN_AHEAD,),
    ),
    Mutation(
        "a row that is locked while it is found out is left alone",
        AHEAD,
        "return {each for each in outcomes if each.lease.key not in found and self._is_held(each)}",
        "return set()",
        (RUN_AHEAD,),
    ),
    Mutation(
        "rows that could not be loaded after their move are not found out",
        AHEAD,
        "outcome.is_repeated = True  # they",
        "outcome.is_repeated = False  # they",
        (RUN_AHEAD,),
    ),
    Mutation(
        "a lease of a try that was undone is handed on",
        "worker/commit.py",
        "            outcome.following = None  # of a try that was undone\n",
        "            pass\n",
        (RUN_AHEAD,),
    ),
    Mutation("rows go on without end", AHEAD, " and outcome.lease.step < MOST_STEPS", "", (RUN_AHEAD,)),
    Mutation("steps are not counted", AHEAD, "outcome.lease.step + 1", "1", (RUN_AHEAD,)),
    Mutation(
        "a row that goes on is not held",
        AHEAD,
        "        self.inflight.took(leases)\n",
        "",
        (RUN_AHEAD,),
    ),
    Mutation(
        "a row that goes on is held after others can take it",
        AHEAD,
        """        self.inflight.took(leases)
        self.on_taken(leases)
""",
        """        self.on_taken(leases)
        threading.Timer(0.2, self.inflight.took, [leases]).start()
""",
        (RUN_AHEAD,),
    ),
    Mutation(
        "a row that goes on is handed on as it was",
        AHEAD,
        "                outcome.following.step = outcome.lease.step + 1\n",
        "                outcome.following.step = outcome.lease.step + 1\n"
        "                outcome.following.instance = outcome.lease.instance\n",
        (RUN_AHEAD,),
    ),
    Mutation(
        "rows go on in a process that stops",
        AHEAD,
        "None if is_stopping else self._target(lane, outcome)",
        "self._target(lane, outcome)",
        (RUN_AHEAD,),
    ),
    Mutation(
        "rows go on where there is no room",
        AHEAD,
        "                if room[target] >= 0:\n",
        "                if True:\n",
        (RUN_AHEAD,),
    ),
    Mutation(
        "rows that go on wait behind others", AHEAD, "put(lane, part, in_front=True)", "put(lane, part)", (RUN_AHEAD,)
    ),
    Mutation(
        "rows that come too late to go on are forgotten",
        AHEAD,
        "            self.on_late(self.inflight.buffer.put(lane, part, in_front=True))",
        "            self.inflight.buffer.put(lane, part, in_front=True)",
        (RUN_AHEAD,),
    ),
    Mutation(
        "the claimer is woken for rows that go on",
        "worker/outcomes.py",
        "self.delay if self.following is None else None",
        "self.delay",
        (RUN_AHEAD,),
    ),
    uncompared("ENTER without the token", "enter", "lease_token", (LEASES, RACES)),
    uncompared("STAY without the token", "stay", "lease_token", (LEASES, RACES)),
    uncompared("RELEASE without the token", "release", "lease_token", (LEASES, LATE)),
    uncompared("BEAT without the token", "beat", "lease_token", (LEASES, LATE)),
    Mutation(
        "LOCK without the token",
        WRITER,
        "WHERE {key} = %s AND {lease_token} = %s FOR",
        "WHERE {key} = %s AND %s > 0 FOR",
        (LEASES, LATE, "tests/faults/test_deletion.py"),
    ),
    Mutation(
        "HELD without the token",
        WRITER,
        " AND t.{lease_token} = given.was_lease_token",
        "",
        (LEASES, LATE),
    ),
    uncompared("ENTER without the from-state", "enter", "status", (LEASES,)),
    uncompared("STAY without the from-state", "stay", "status", (LEASES,)),
    Mutation(
        "a foreground move keeps the token",
        WRITER,
        "effect.as_sql(names, TERMS, also=map(quote, updates))",
        "effect.as_sql(names, TERMS, also=map(quote, updates)).replace('lease_token\" + 1', 'lease_token\"')",
        (RACES, "tests/schedule/test_rows.py"),
    ),
    Mutation(
        "a release keeps the token",
        EFFECTS,
        'Effect("release", _END_OF_LEASE)',
        'Effect("release", {"lease_owner": Becomes.EMPTY, "lease_expires_at": Becomes.EMPTY})',
        (LEASES,),
    ),
    Mutation(
        "an outcome that stays keeps the token",
        EFFECTS,
        '        **_END_OF_LEASE,\n        "crashes"',
        '        "lease_owner": Becomes.EMPTY, "lease_expires_at": Becomes.EMPTY,\n        "crashes"',
        (LEASES,),
    ),
    Mutation(
        "a move keeps the token",
        EFFECTS,
        "{**_COUNTED, **_END_OF_LEASE, **_FRESH}",
        '{**_COUNTED, "lease_owner": Becomes.EMPTY, "lease_expires_at": Becomes.EMPTY, **_FRESH}',
        (LEASES,),
    ),
    Mutation(
        "a claim keeps the token",
        EFFECTS,
        'Effect("claim", _TAKEN)',
        'Effect("claim", dict([*_TAKEN.items()][1:]))',
        (LEASES, LATE),
    ),
    Mutation(
        "a commit waits for locks",
        WRITER,
        'ORDER BY {key}\n           FOR NO KEY UPDATE SKIP LOCKED)"""',
        'ORDER BY {key}\n           FOR NO KEY UPDATE)"""',
        (f"{LEASES}::TestLocks",),
    ),
    Mutation(
        "a plan that was made for an empty table reads all of it for ever",
        "db/own.py",
        "SET enable_seqscan = off",
        "SET enable_seqscan = on",
        ("tests/db/test_plans.py",),
    ),
    Mutation(
        "a row or two are planned anew each time",
        "db/postgresql_claims.py",
        "FEW = 4",
        "FEW = 0",
        ("tests/db/test_plans.py",),
    ),
    Mutation(
        "rows are claimed however many wait for their write",
        "worker/claiming.py",
        "room := min(room, self.room_to_write(lane))",
        "room",
        ("tests/faults/test_progress.py::test_rows_that_are_slow_to_write_are_left_to_others",),
    ),
    Mutation(
        "rows that there is no time to write stay leased",
        "worker/runner.py",
        "self.commits.hurry(is_over=True)",
        "pass",
        ("tests/faults/test_stopping.py::test_a_stop_gives_back_what_there_is_no_time_to_write",),
    ),
    Mutation(
        "the claimer does not go on when what waited is written",
        "worker/claiming.py",
        "if soon or is_free or",
        "if soon or",
        ("tests/worker/test_claiming.py::TestRowsThatAreNotYetWritten",),
    ),
    Mutation(
        "what a thread is about to write does not count as waiting for its write",
        "worker/commit.py",
        "is_sure=is_sure), self._taken[lane]",
        "is_sure=is_sure), 0",
        ("tests/worker/test_committing.py::TestLoop",),
    ),
    Mutation(
        "a worker sleeps past the time of a row for which it had no room before",
        "worker/claiming.py",
        "return left if left > 0 or self._room(lane) > 0 else",
        "return left if self._room(lane) > 0 else",
        ("tests/worker/test_claiming.py::TestRest",),
    ),
    Mutation(
        "the end of a coroutine goes unheard",
        "worker/claiming.py",
        "if lease.lane.is_async and lease.is_async and self.inflight.buffer.is_empty([True]):",
        "if False:",
        ("tests/worker/test_claiming.py::TestRest",),
    ),
    Mutation(
        "the claimer does not hear the listener while it waits",
        "worker/ear.py",
        "wake.wait(seconds, reader)",
        "wake.wait(seconds)",
        (LISTENING,),
    ),
    Mutation(
        "LOCK waits for locks",
        WRITER,
        "{lease_token} = %s FOR NO KEY UPDATE SKIP LOCKED",
        "{lease_token} = %s FOR NO KEY UPDATE",
        (f"{LEASES}::TestLocks",),
    ),
    Mutation(
        "crashes without a limit",
        "worker/executor.py",
        "if lease.crashes >= self.max_crashes:",
        "if lease.crashes < 0:",
        ("tests/worker/test_executor.py",),
    ),
    Mutation(
        "tries without a limit",
        "schedule/policy.py",
        "return self.max_attempts is not None and failures >= self.max_attempts",
        "return False",
        ("tests/schedule/test_policy.py", "tests/worker/test_executor.py"),
    ),
    Mutation(
        "release() without its comparison",
        "schedule/rows.py",
        "            names.lease_token: getattr(self.instance, names.lease_token),\n",
        "",
        ("tests/schedule/test_rows.py",),
    ),
    Mutation(
        "a worker trusts a lease for ever",
        "worker/lease.py",
        "return not self.is_lost and now() < self.trusted_until",
        "return not self.is_lost",
        (CUT_OFF,),
    ),
    Mutation(
        "a recovery keeps the token",
        EFFECTS,
        '"crashes": Becomes.RAISED, **_END_OF_LEASE',
        '"crashes": Becomes.RAISED, "lease_owner": Becomes.EMPTY, "lease_expires_at": Becomes.EMPTY',
        (LEASES,),
    ),
    Mutation(
        "a claim waits for locks",
        CLAIMS,
        'LOCKS = " FOR NO KEY UPDATE SKIP LOCKED"',
        'LOCKS = " FOR NO KEY UPDATE"',
        (f"{LEASES}::TestClaim::test_does_not_wait_for_a_row_that_is_locked",),
    ),
    Mutation(
        "a recovery waits for locks",
        CLAIMS,
        "         ORDER BY {key} FOR NO KEY UPDATE SKIP LOCKED),\n    freed",
        "         ORDER BY {key} FOR NO KEY UPDATE),\n    freed",
        (f"{LEASES}::TestLocks::test_of_a_dead_worker_s_rows_are_left_to_run_out",),
    ),
    Mutation(
        "a recovery counts no crash",
        EFFECTS,
        '"crashes": Becomes.RAISED, **_END_OF_LEASE',
        "**_END_OF_LEASE",
        (LEASES,),
    ),
    Mutation(
        "a row given back unheard counts a crash",
        CLAIMS,
        "effect = RECOVER if left.is_crash else UNCLAIM",
        "left = type(left)(left.owner, left.held)\n        effect = RECOVER",
        (f"{CLAIMING}::TestUnheard",),
    ),
    Mutation(
        "leases that have not run out are claimed",
        CLAIMS,
        "CASE WHEN {lease_expires_at} IS NULL THEN {crashes} = 0 ELSE false END{which}",
        "{crashes} = 0{which}",
        (LEASES,),
    ),
    Mutation(
        "leases that have not run out are taken back",
        CLAIMS,
        'which = "{lease_expires_at} <= statement_timestamp()"',
        'which = "{lease_expires_at} IS NOT NULL"',
        (LEASES,),
    ),
    Mutation(
        "leases that have run out are not taken back",
        CLAIMS,
        'which = "{lease_expires_at} <= statement_timestamp()"',
        'which = "{lease_expires_at} IS NULL"',
        (LEASES,),
    ),
    Mutation(
        "suspects are claimed with everybody",
        CLAIMS,
        "IS NULL THEN {crashes} = 0 ELSE false END",
        "IS NULL THEN true ELSE false END",
        (LEASES,),
    ),
    Mutation(
        "suspects are not ordered by crashes",
        CLAIMS,
        "ORDER BY {crashes}, {urgency}{next_at} LIMIT",
        "ORDER BY {urgency}{next_at} LIMIT",
        (f"{CLAIMING}::TestSuspects",),
    ),
    Mutation(
        "rows that more than one died of are claimed with the others",
        "db/claims.py",
        '1: "= 1", 2: "> 1"}',
        '1: ">= 1", 2: "> 1"}',
        (f"{CLAIMING}::TestSuspects",),
    ),
    Mutation(
        "rows that more than one died of are claimed together",
        "worker/claiming.py",
        "((limit, 1), (1, 2))",
        "((limit, 1), (limit, 2))",
        (f"{CLAIMING}::TestSuspects",),
    ),
    Mutation(
        "suspects are claimed while others run",
        "worker/claiming.py",
        "if not self.inflight.suspects and prefetch",
        "if prefetch",
        (f"{CLAIMING}::TestSuspects",),
    ),
    Mutation(
        "suspects share their last death",
        "worker/claiming.py",
        "prefetch.suspects if self.options.max_crashes > 2 else 1",
        "prefetch.suspects",
        (f"{CLAIMING}::TestSuspects",),
    ),
    Mutation(
        "a claim reads all that is due",
        CLAIMS,
        "CASE WHEN {lease_expires_at} IS NULL THEN {crashes} = 0 ELSE false END{which}",
        "{lease_expires_at} IS NULL AND {crashes} = 0{which}",
        (f"{LEASES}::TestClaim",),
    ),
    Mutation(
        "an answer names all rows",
        "db/prepared.py",
        "return Written([keys[place - 1] for (place,) in rows])",
        "return Written(keys if rows else ())",
        (LEASES,),
    ),
    Mutation(
        "an answer names the row before",
        "db/prepared.py",
        "return Written([keys[place - 1] for (place,) in rows])",
        "return Written([keys[place - 2] for (place,) in rows])",
        (LEASES,),
    ),
    Mutation(
        "a walk for rows left behind ends too soon",
        CLAIMS,
        "if (last <= walk // 2 and not is_tied) or",
        "if (last <= walk and not is_tied) or",
        (f"{LEASES}::TestRecover",),
    ),
    Mutation(
        "a walk for rows left behind does not end",
        CLAIMS,
        "if (last <= walk // 2 and not is_tied) or walk >= LONGEST_WALK",
        "if walk >= LONGEST_WALK",
        (f"{LEASES}::TestRecover",),
    ),
    Mutation(
        "rows in hand are given back with the unheard",
        CLAIMS,
        "if left.held:",
        "if False:",
        (f"{CLAIMING}::TestUnheard",),
    ),
    Mutation(
        "a move writes the handler's instance",
        "worker/writing.py",
        "row: Any = models.QuerySet(lane.bound.model, using=lane.using).filter(pk=lease.key).first()",
        "row: Any = lease.instance",
        (f"{COMMIT}::TestRowByRow",),
    ),
    Mutation(
        "a move goes where the router says",
        "worker/writing.py",
        "        record_id=outcome.record_id,\n        using=lane.using,\n",
        "        record_id=outcome.record_id,\n",
        (f"{COMMIT}::TestRowByRow",),
    ),
    Mutation(
        "a transaction marked for rollback passes for committed",
        "worker/atomic.py",
        "if kind is None and connection.needs_rollback:",
        "if False:",
        (f"{COMMIT}::TestTrackedTransaction",),
    ),
    Mutation(
        "a transaction left open within another is not noticed",
        "worker/atomic.py",
        "if connection.atomic_blocks[-1:] != [self._atomic]:",
        "if False:",
        (f"{COMMIT}::TestTrackedTransaction",),
    ),
    Mutation(
        "an error after the commit passes for a failure",
        "worker/atomic.py",
        "        self.is_committed = True\n",
        "        pass\n",
        (f"{COMMIT}::TestTrackedTransaction",),
    ),
    Mutation(
        "an error of a working connection passes for a lost answer",
        "worker/connections.py",
        "return connection.connection is driver and driver is not None and connection.is_usable()",
        "return False",
        (
            f"{CONNECTIONS}::TestIsSame",
            f"{COMMIT}::TestLostAnswer",
        ),
    ),
    Mutation(
        "a new connection passes for the one that was lost",
        "worker/connections.py",
        "return connection.connection is driver and driver is not None",
        "return driver is not None",
        (f"{CONNECTIONS}::TestIsSame",),
    ),
    Mutation(
        "a bad row takes its group along",
        "worker/commit.py",
        "elif len(part) > 1:",
        "elif False:",
        (f"{COMMIT}::TestBadRow",),
    ),
    Mutation(
        "an answer that was lost is not looked for",
        "worker/commit.py",
        "found = write.find(lane, repeated) if repeated else set()",
        "found = set()",
        (f"{COMMIT}::TestLostAnswer",),
    ),
    Mutation(
        "a conflict passes for a failure",
        "worker/commit.py",
        "self._defer(part, error) if is_in_the_way(lane, error) else self._refuse(part[0], error)",
        "self._refuse(part[0], error)",
        (f"{COMMIT}::TestLockedRow",),
    ),
    Mutation(
        "a row that cannot be claimed stops its lane",
        "worker/claim.py",
        "yield from self._isolate(lane, wanted, error)",
        "raise",
        (f"{CLAIMING}::TestBadRow",),
    ),
    Mutation(
        "a row set aside is claimed with the others",
        "worker/claim.py",
        "aside=tuple(self.aside[lane])",
        "aside=()",
        (f"{CLAIMING}::TestBadRow",),
    ),
    Mutation(
        "a row set aside is never tried again",
        "worker/claiming.py",
        "            self._put(lane, self.claimer.take_aside(lane))\n",
        "",
        (f"{CLAIMING}::TestBadRow",),
    ),
    Mutation(
        "a row is blamed for a lock on all",
        "worker/claim.py",
        "if not has_some and (not bad or (len(keys) > 1 and all(is_in_the_way(lane, cause) for _key, cause in bad))):",
        "if not has_some and not bad:",
        (f"{CLAIMING}::TestBadRow",),
    ),
    Mutation(
        "a lane that fails is not contained",
        "worker/claiming.py",
        "            has_asked = act(lane)\n        except (DatabaseError, InterfaceError) as error:",
        "            has_asked = act(lane)\n        except InterfaceError as error:",
        (f"{CLAIMING}::TestContainment",),
    ),
    Mutation(
        "a lane that failed is asked again at once",
        "worker/claiming.py",
        "            trouble.failed()\n",
        "",
        (f"{CLAIMING}::TestContainment",),
    ),
    Mutation(
        "a claim that was not heard is forgotten",
        "worker/claiming.py",
        "                self._unheard[lane] = time.monotonic() + 2 * self.own.limits.statement\n",
        "",
        (f"{CLAIMING}::TestUnheard",),
    ),
    Mutation(
        "a claim that was not heard is left at the end",
        "worker/claiming.py",
        "        while self._unheard:\n",
        "        while False:\n",
        (f"{CLAIMING}::TestUnheard",),
    ),
    Mutation(
        "a stop does not wait for the claimer",
        "worker/runner.py",
        "return not self.inflight.held and self.claiming.ended.is_set()",
        "return not self.inflight.held",
        (RUNNER,),
    ),
    Mutation(
        "a process that is replaced hurries its handlers",
        "worker/runner.py",
        "if hurried_at is None and is_hurried():",
        "if hurried_at is None:",
        (RUNNER,),
    ),
    Mutation(
        "a handler whose time was up is heard",
        "worker/running.py",
        "        if lease.is_stopped:\n            return",
        "        if False:\n            return",
        ("tests/worker/test_running.py",),
    ),
    Mutation(
        "a row that may be lost is run",
        "worker/running.py",
        "if lease.is_trusted and not self.stopping.is_set():",
        "if not self.stopping.is_set():",
        ("tests/worker/test_running.py",),
    ),
    Mutation(
        "rows that come too late are kept by nobody",
        "worker/inflight.py",
        "            if self._closed:\n                return leases\n",
        "",
        (BUFFER,),
    ),
    Mutation(
        "lanes do not take turns",
        "worker/inflight.py",
        "        for _ in range(len(turns)):\n            lane = turns[0]\n            turns.rotate(-1)\n",
        "        for lane in list(turns):\n",
        (BUFFER,),
    ),
    Mutation(
        "a row that another took stops a thread",
        "worker/inflight.py",
        "            except IndexError:  # another thread was quicker",
        "            except ZeroDivisionError:",
        (BUFFER,),
    ),
    Mutation(
        "what runs in a replaced process is not counted",
        "worker/inflight.py",
        "self._running[queue] + self._elsewhere.get(queue, 0) >= limit",
        "self._running[queue] >= limit",
        (BUFFER,),
    ),
    Mutation(
        "what runs in a replaced process is not obeyed",
        "worker/process.py",
        "self.runner.inflight.buffer.count_elsewhere(orders.elsewhere)",
        "pass",
        (RUNNER,),
    ),
    Mutation(
        "what runs in a replaced process is not told",
        "worker/supervisor.py",
        "running.update(child.report.running)",
        "pass",
        (SUPERVISOR,),
    ),
    Mutation(
        "a process asks whose child it is after the fork",
        "worker/process.py",
        "self.supervisor = supervisor",
        "self.supervisor = os.getppid()",
        (RUNNER,),
    ),
    Mutation(
        "an exit code passes for the last report",
        "worker/supervisor.py",
        "        if child.has_ended:\n",
        "        if code == 0:\n",
        (SUPERVISOR,),
    ),
    Mutation(
        "a last report does not say that it is the last",
        "worker/process.py",
        "report.ended, report.left = True, left",
        "report.left = left",
        (RUNNER,),
    ),
    Mutation(
        "processes that linger are never hurried",
        "worker/supervisor.py",
        "child.give(Orders(hurry=True))",
        "pass",
        (SUPERVISOR,),
    ),
    Mutation(
        "a process that is silent is left alone",
        "worker/supervisor.py",
        "                child.process.kill()\n",
        "",
        (SUPERVISOR,),
    ),
    Mutation(
        "processes share a pool",
        "worker/supervisor.py",
        "                close_pool()\n",
        "                pass\n",
        (SUPERVISOR,),
    ),
    Mutation(
        "own connections come from a pool",
        "db/own.py",
        ' if name != "pool"}',
        "}",
        (OWN,),
    ),
    Mutation(
        "own connections have no limit on the server",
        "db/own.py",
        'cursor.execute(LIMITS.format(local="false"), self._milliseconds)',
        "pass",
        (OWN,),
    ),
    Mutation(
        "limits of the project are raised",
        "db/own.py",
        "str(min(milliseconds, ours) if milliseconds else ours)",
        "str(ours)",
        (OWN,),
    ),
    Mutation(
        "own connections behind a pooler have no limit",
        "db/own.py",
        "if self.is_direct or self._is_limited:",
        "if True:",
        (OWN,),
    ),
    Mutation(
        "limits outlast a transaction behind a pooler",
        "db/own.py",
        'cursor.execute(LIMITS.format(local="true"), self._milliseconds)',
        'cursor.execute(LIMITS.format(local="false"), self._milliseconds)',
        (OWN,),
    ),
    Mutation(
        "limits are not set again in the next transaction behind a pooler",
        "db/own.py",
        "        self._is_limited = False\n        with self.answered()",
        "        with self.answered()",
        (OWN,),
    ),
    Mutation(
        "no answer is ever overdue",
        "db/own.py",
        "outer, self._answer_by = self._answer_by, time.monotonic() + self.limits.statement",
        "outer, self._answer_by = self._answer_by, None",
        (f"{OWN}::TestSilence",),
    ),
    Mutation(
        "nobody hangs up on a silent server",
        "worker/connections.py",
        "                dialect_for(connection).hang_up(connection)\n",
        "",
        (f"{OWN}::TestSilence",),
    ),
    Mutation(
        "a transaction is left open for the next handler",
        "worker/connections.py",
        "if is_suspect or _is_soiled(connection):",
        "if is_suspect:",
        (f"{CONNECTIONS}::TestTidy",),
    ),
    Mutation(
        "a connection in a transaction is closed and not discarded",
        "worker/connections.py",
        "            discard(connection)\n        else:",
        "            connection.close()\n        else:",
        (f"{CONNECTIONS}::TestTidy",),
    ),
    Mutation(
        "a transaction that Django does not know of is left open",
        "worker/connections.py",
        "return not dialect_for(connection).is_clean(connection)",
        "return False",
        (f"{CONNECTIONS}::TestTidy",),
    ),
    Mutation(
        "a database that is away counts as a failure",
        "worker/connections.py",
        "        return Trouble.AWAY\n",
        "        return Trouble.NONE\n",
        (f"{CONNECTIONS}::TestDiagnose",),
    ),
    Mutation(
        "a connection that was cut counts as a failure",
        "worker/connections.py",
        "return Trouble.CUT if is_cut else Trouble.NONE",
        "return Trouble.NONE",
        (f"{CONNECTIONS}::TestDiagnose",),
    ),
    Mutation(
        "a handler's own error is forgiven",
        "worker/connections.py",
        "return Trouble.CUT if is_cut else Trouble.NONE",
        "return Trouble.CUT",
        (f"{CONNECTIONS}::TestDiagnose",),
    ),
    Mutation(
        "cuts are forgiven for ever",
        "worker/verdicts.py",
        "return cuts <= MOST_CUTS",
        "return True",
        (f"{EXECUTOR}::TestCuts",),
    ),
    Mutation(
        "conflicts are forgiven for ever",
        "worker/executor.py",
        "if lease.conflicts >= MOST_CONFLICTS:",
        "if False:",
        (f"{EXECUTOR}::TestConflicts",),
    ),
    Mutation(
        "coroutines share a thread",
        "worker/coroutines.py",
        "SyncToAsync.thread_sensitive_context.set(context)",
        "pass",
        (f"{COROUTINES}::TestEventLoop",),
    ),
    Mutation(
        "a coroutine leaves its thread as it is",
        "worker/coroutines.py",
        "return self._add(_leave_thread)",
        "return self._add(lambda: None)",
        (
            f"{COROUTINES}::TestExecutor",
            f"{COROUTINES}::TestThreads",
        ),
    ),
    Mutation(
        "a coroutine with something open gives its thread up",
        "worker/coroutines.py",
        "return not self._under_way and not self._is_bound",
        "return not self._under_way",
        (f"{COROUTINES}::TestThreads",),
    ),
    Mutation(
        "a coroutine with a call under way gives its thread up",
        "worker/coroutines.py",
        "return not self._under_way and not self._is_bound",
        "return not self._is_bound",
        (f"{COROUTINES}::TestThreads",),
    ),
    Mutation(
        "coroutines have any number of threads",
        "worker/coroutines.py",
        "if self._made < self._most:",
        "if True:",
        (f"{COROUTINES}::TestThreads",),
    ),
    Mutation(
        "a handler can stop the event loop",
        "worker/coroutines.py",
        "        while True:\n            try:\n                self._loop.run_forever()",
        "        if True:\n            try:\n                self._loop.run_forever()",
        (f"{COROUTINES}::TestEventLoop",),
    ),
    Mutation(
        "a task can end the event loop",
        "worker/coroutines.py",
        "            except BaseException:\n                if self._loop",
        "            except ZeroDivisionError:\n                if self._loop",
        (f"{COROUTINES}::TestEventLoop",),
    ),
    Mutation(
        "counts whose answer was lost are sent again",
        "worker/statistics.py",
        "            if not was_committed:\n",
        "            if True:\n",
        ("tests/worker/test_statistics.py",),
    ),
    Mutation(
        "counts whose answer was lost are forgotten",
        "worker/statistics.py",
        "                self.events.put_back(counts)\n            self._unheard = None",
        "                pass\n            self._unheard = None",
        ("tests/worker/test_statistics.py",),
    ),
    Mutation(
        "an error ends the heartbeat",
        "worker/heartbeat.py",
        "except Exception as error:  # noqa: BLE001 - whatever",
        "except ZeroDivisionError as error:  # whatever",
        ("tests/worker/test_heartbeat.py",),
    ),
    Mutation(
        "a row that cannot be extended costs its neighbours their leases",
        "worker/heartbeat.py",
        "for part in (leases[:half], leases[half:]) if half else ():",
        "for part in ():",
        ("tests/worker/test_heartbeat.py",),
    ),
    Mutation(
        "lines that are not logged are not counted",
        "worker/digest.py",
        "                seen.count += 1\n",
        "",
        ("tests/worker/test_digest.py",),
    ),
    Mutation(
        "every line is logged",
        "worker/digest.py",
        "if seen is not None and now - seen.since < SECONDS:",
        "if False:",
        ("tests/worker/test_digest.py",),
    ),
    Mutation(
        "what ends a lease keeps the token",
        EFFECTS,
        '    "lease_expires_at": Becomes.EMPTY,\n    "lease_token": Becomes.RAISED,\n}',
        '    "lease_expires_at": Becomes.EMPTY,\n}',
        (EFFECT_TESTS, LEASES),
    ),
    Mutation(
        "many rows are written whatever they were",
        WRITER,
        "for column in compares])",
        "for column in compares[:0]])",
        (EFFECT_TESTS,),
    ),
    Mutation(
        "of what is compared of many rows, the first alone counts",
        WRITER,
        "for column in compares])",
        "for column in compares[:1]])",
        (LEASES,),
    ),
    Mutation(
        "one row is written whatever it was",
        WRITER,
        'for column in ("key", *compares)])',
        'for column in ("key", *compares)][:1] + ["%s IS NOT NULL" for _ in compares])',
        (EFFECT_TESTS,),
    ),
    Mutation(
        "a queryset writes seconds for an instant",
        EFFECTS,
        "if becomes in (Becomes.LATER_OR_HORIZON, Becomes.BLAME):",
        "if False:",
        (EFFECT_TESTS,),
    ),
    Mutation(
        "a row that was not tried counts a try",
        EFFECTS,
        'Effect("unclaim", {**_END_OF_LEASE, "attempts": Becomes.LOWERED})',
        'Effect("unclaim", _END_OF_LEASE)',
        (LEASES, f"{CLAIMING}::TestUnheard"),
    ),
    Mutation(
        "a broken connection is not noticed before a prepared statement",
        "db/prepared.py",
        "        connection.close_if_health_check_failed()\n",
        "        pass\n",
        ("tests/machine/test_one_statement.py",),
    ),
    Mutation(
        "statements are prepared by settings that are no more",
        "db/prepared.py",
        " or kept.wanted_by is not conf.current",
        "",
        (PLAN_TESTS,),
    ),
    Mutation(
        "a plan of another class",
        PLAN,
        "    kind = (model, ",
        "    kind = (bound.model, ",
        (PLAN_TESTS,),
    ),
    Mutation(
        "a plan of another database", PLAN, "(connection.alias, type(connection))", "(connection.alias,)", (PLAN_TESTS,)
    ),
    Mutation(
        "a plan for a save() that is no more",
        PLAN,
        "        model.save is models.Model.save,\n",
        "        True,\n",
        (PLAN_TESTS,),
    ),
    Mutation(
        "a plan for a save_base() that is no more",
        PLAN,
        '        getattr(model.save_base, "__wrapped__", model.save_base) is models.Model.save_base,\n',
        "        True,\n",
        (PLAN_TESTS,),
    ),
    Mutation(
        "a plan for records that are made otherwise by now",
        PLAN,
        "        audit.__init__ is models.Model.__init__,\n",
        "        True,\n",
        (PLAN_TESTS,),
    ),
    Mutation(
        "a plan without who hears of a save",
        PLAN,
        "bool(post_save.receivers) and post_save.has_listeners(model),",
        "False,",
        (PLAN_TESTS,),
    ),
    Mutation(
        "a plan without who hears of a record",
        PLAN,
        "bool(post_save.receivers) and post_save.has_listeners(audit),",
        "False,",
        (PLAN_TESTS,),
    ),
    Mutation(
        "a plan without who hears of a move",
        PLAN,
        "bool(post_transition.receivers) and post_transition.has_listeners(bound.model),",
        "False,",
        (PLAN_TESTS,),
    ),
    Mutation(
        "a plan without who hears of a commit",
        PLAN,
        "bool(transition_committed.receivers) and transition_committed.has_listeners(bound.model),",
        "False,",
        (PLAN_TESTS,),
    ),
    Mutation("plans without end", PLAN, "            bound.plans.clear()\n", "            pass\n", (PLAN_TESTS,)),
    Mutation(
        "a plan keeps the connection of a thread",
        PLAN,
        'self._compares = ("status", *compares)\n',
        'self._compares, self._connection = ("status", *compares), connection\n',
        (PLAN_TESTS,),
    ),
    Mutation(
        "permissions are not asked",
        "machine/judge.py",
        "if user is None or permission is None:",
        "if True:",
        (JUDGE_TESTS,),
    ),
    Mutation(
        "a guard of one state is asked for none",
        "machine/judge.py",
        "if targets is not None and to_status not in targets:",
        "if targets is not None:",
        (JUDGE_TESTS,),
    ),
    Mutation(
        "who waits is answered by the row, and not by its records",
        "machine/arrivals.py",
        "if waiter.sequence > waiter.seen:",
        "if waiter.sequence > waiter.seen and waiter.status in waiter.states:",
        (WAITING,),
    ),
    Mutation(
        "who waits may be answered by a row that had the same key",
        "machine/arrivals.py",
        "records_of_rows(bound, all_rows(audit, using).filter(which))",
        "all_rows(audit, using).filter(which)",
        (WAITING,),
    ),
    Mutation(
        "who waits is woken before the move is committed",
        "machine/watcher.py",
        "transaction.on_commit(partial(watcher.look_at, place), using=using)",
        "watcher.look_at(place)",
        (WAITING,),
    ),
    Mutation(
        "a process that was forked waits for a thread of its parent",
        "machine/watcher.py",
        "    watchers.clear()",
        "    pass",
        (WAITING,),
    ),
    Mutation(
        "who waits with a transaction of their own is not refused",
        "machine/waiting.py",
        "if not is_tested and (",
        "if False and (",
        (WAITING,),
    ),
    Mutation(
        "who waits for an answer hangs up on no server that has fallen silent",
        "machine/waiting.py",
        """futures.wait([wait.waiter.future], wait.time_left(LIMITS.statement))
                watcher.hang_up_if_silent()""",
        "futures.wait([wait.waiter.future], wait.time_left(LIMITS.statement))",
        (WAITING,),
    ),
    Mutation(
        "a row sleeps without comparing its inbox",
        "worker/outcomes.py",
        "return None if self.lease.awaited is None else self.lease.awaited.seen",
        "return None",
        (INBOX, INBOX_RACES),
    ),
    Mutation(
        "a row moves without comparing its inbox",
        "worker/outcomes.py",
        "return None if not awaits else 0 if awaited is None else awaited.seen or 0",
        "return None",
        (INBOX, INBOX_RACES),
    ),
    Mutation(
        "people move a row without comparing its inbox",
        "machine/binding.py",
        "return 0 if state in self.awaited_names else None",
        "return None",
        (DELIVERY, INBOX_RACES),
    ),
    # A sub-select is no comparison: after a wait for a lock PostgreSQL reads the row again, and not what is in the sub-select.
    Mutation(
        "people who move a row ask for its events in a sub-select",
        WRITER,
        "effect.as_sql(names, TERMS, also=map(quote, updates))",
        "effect.as_sql(names, TERMS, also=map(quote, updates)).replace("
        "'\"status_inbox\" >', '(SELECT count(*) FROM lab_petitionstateevent AS e WHERE e.instance_id = lab_petition.id) >')",
        (INBOX_RACES,),
    ),
    Mutation(
        "workers that let a row go ask for its events in a sub-select",
        WRITER,
        'effect.as_sql(names, TERMS, given="given.{}", row="t.", also=map(quote, updates))',
        'effect.as_sql(names, TERMS, given="given.{}", row="t.", also=map(quote, updates)).replace('
        "'t.\"status_inbox\" >', '(SELECT count(*) FROM lab_petitionstateevent AS e WHERE e.instance_id = t.id) >')",
        (INBOX_RACES,),
    ),
    Mutation(
        "the number of an event is drawn before the row is locked",
        EVENTS,
        "SELECT %s::uuid, key, inbox + 1,",
        "SELECT %s::uuid, key, (SELECT p.{inbox} FROM {name} AS p WHERE p.{key} = target.key) + 1,",
        (INBOX_RACES,),
    ),
    Mutation(
        "who delivers to several rows locks them in any order",
        EVENTS,
        'ORDER BY {key} FOR NO KEY UPDATE"',
        'ORDER BY random() FOR NO KEY UPDATE"',
        (INBOX_RACES,),
    ),
    Mutation(
        "a time-out comes before an event that is there",
        "worker/executor.py",
        "if lease.awaited is not None and lease.awaited.has_happened:",
        "if lease.awaited is not None and lease.awaited.has_happened and not self._is_timed_out(lease):",
        (INBOX,),
    ),
    Mutation(
        "a row that failed once in its state is not woken",
        EVENTS,
        "AND t.{error} = ''",
        "AND t.{failures} = 0 AND t.{error} = ''",
        (DELIVERY,),
    ),
    Mutation("a parked row is woken", EVENTS, " AND t.{error} = ''", "", (DELIVERY,)),
    Mutation(
        "a row that is held is woken",
        EVENTS,
        "{is_awaited} AND t.{lease_expires_at} IS NULL AND t.{next_at} <=",
        "{is_awaited} AND t.{next_at} <=",
        (DELIVERY,),
    ),
    Mutation(
        "senders do not lock the row",
        EVENTS,
        "WHERE {key} = %s FOR NO KEY UPDATE),",
        "WHERE {key} = %s),",
        (INBOX_RACES,),
    ),
    Mutation(
        "what was seen wakes the row again",
        "worker/inbox.py",
        "self._seen = max([inbox, *[event.number for event in untaken]])",
        "self._seen = 0",
        (INBOX,),
    ),
    Mutation(
        "what is left for the next state does not wake the row there",
        "worker/inbox.py",
        "return isinstance(until, Event) and not left.isdisjoint(until.names)",
        "return False",
        (INBOX,),
    ),
    Mutation(
        "a worker's move takes what somebody else handles, once its lease has ended",
        WRITER,
        "for column in compares])",
        'for column in compares if (effect.name, column) != ("enter", "lease_token")])',
        (INBOX,),
    ),
    Mutation(
        "a policy's move takes what no handler was handed",
        "worker/verdicts.py",
        "metadata=metadata, take=()",
        "metadata=metadata",
        (INBOX,),
    ),
    Mutation(
        "a copy takes back the inbox of a row",
        "machine/raw.py",
        'if "inbox" in bound.features:  # nor an event that came since',
        "if False:",
        ("tests/machine/test_raw_saves.py",),
    ),
]


def source_of(mutation: Mutation) -> Path:
    return ROOT / "src" / PACKAGE / mutation.file


def failures(mutation: Mutation, *, all_of_them: bool = False) -> list[str]:
    """Return the tests that fail with a mutation, or the first."""
    with tempfile.TemporaryDirectory(prefix="smf-mutation-") as directory:
        copy = Path(directory) / "src"
        shutil.copytree(ROOT / "src", copy, ignore=shutil.ignore_patterns("__pycache__"))
        file = copy / PACKAGE / mutation.file
        text = file.read_text()
        assert text.count(mutation.old) == 1, f"{mutation.name}: not once in {mutation.file}"
        file.write_text(text.replace(mutation.old, mutation.new))
        environment = {
            **os.environ,
            "SMF_DB": "postgresql",
            "SMF_FAULTS": "long",
            "SMF_PATIENCE": PATIENCE,
            "SMF_SRC": str(copy),
            "PYTHONPATH": str(copy),
            "PYTHONDONTWRITEBYTECODE": "1",
        }
        command = [sys.executable, "-m", "pytest", "-q", "-rfE", "--tb=no", "-p", "no:cacheprovider", *mutation.tests]
        if not all_of_them:
            command.append("--exitfirst")
        try:
            ran = subprocess.run(
                command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False, timeout=LONGEST
            )
        except subprocess.TimeoutExpired:
            return [f"{', '.join(mutation.tests)} (which does not end)"]
    failed = list(dict.fromkeys(re.findall(r"^(?:FAILED|ERROR) (.+?)(?: - .*)?$", ran.stdout, re.MULTILINE)))
    # What proves nothing must not look like a result: tests that did not run, or failed without a name.
    passed = ran.returncode == 0 and " passed" in ran.stdout
    if not (passed and not failed) and not (ran.returncode == 1 and failed):
        raise RuntimeError(f"{mutation.name}: exit code {ran.returncode}\n{ran.stdout[-2000:]}{ran.stderr[-2000:]}")
    if not failed:
        print(f"{mutation.name}: {ran.stdout.strip().splitlines()[-1]}", file=sys.stderr)
    return failed


def row_of(mutation: Mutation, failed: list[str]) -> str:
    shown = [f"`{name.removeprefix('tests/')}`" for name in failed[:2]]
    if len(failed) > 2:
        shown.append(f"and {len(failed) - 2} more")
    return f"| {mutation.name} | {', '.join(shown) or mutation.redundant or '**survives**'} |"


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.faults.mutations", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help="the mutations to try: part of a name")
    parser.add_argument("--all", action="store_true", help="name all tests that fail, not only the first")
    options = parser.parse_args()
    chosen = [each for each in MUTATIONS if not options.names or any(name in each.name for name in options.names)]
    tests = tuple(sorted({test for mutation in chosen for test in mutation.tests}))
    if broken := failures(replace(chosen[0], name="no mutation", new=chosen[0].old, tests=tests), all_of_them=True):
        print(f"Without any mutation these fail: {', '.join(broken)}", file=sys.stderr)
        return 2
    survived = 0
    print("| Without this guard | this test fails |\n|---|---|", flush=True)
    for mutation in chosen:
        failed = failures(mutation, all_of_them=options.all)
        survived += not failed and not mutation.redundant
        print(row_of(mutation, failed), flush=True)
    return min(survived, 1)


if __name__ == "__main__":
    sys.exit(main())
