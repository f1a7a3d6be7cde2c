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

SQL = "db/postgresql_leases.py"
LEASES = "tests/worker/test_leases.py"
RACES = "tests/faults/test_races.py"
LATE = "tests/faults/test_late.py::test_an_old_token_is_worth_nothing"
CUT_OFF = "tests/faults/test_late.py::test_a_worker_cut_off_from_its_heartbeat_does_not_start_what_it_may_have_lost"
AGAIN = "tests/faults/test_poison.py::test_a_row_that_was_left_again_goes_behind_the_others_that_were_left"

HOLDS = "t.{key} = ANY(ARRAY(SELECT key FROM locked)) AND said.key = t.{key}"


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


MUTATIONS = [
    Mutation(
        "MOVE without the token",
        SQL,
        "          FROM said WHERE {holds} AND t.{status} = said.was\n",
        f"          FROM said WHERE {HOLDS} AND t.{{status}} = said.was\n",
        (LEASES, RACES),
    ),
    Mutation(
        "SETTLE without the token",
        SQL,
        "      FROM said WHERE {holds} AND t.{status} = said.was\n    RETURNING",
        f"      FROM said WHERE {HOLDS} AND t.{{status}} = said.was\n    RETURNING",
        (LEASES, RACES),
    ),
    Mutation(
        "RELEASE without the token",
        SQL,
        "{lease_expires_at} = NULL, {lease_token} = t.{lease_token} + 1\n      FROM said WHERE {holds}\n",
        f"{{lease_expires_at}} = NULL, {{lease_token}} = t.{{lease_token}} + 1\n      FROM said WHERE {HOLDS}\n",
        (LEASES, LATE),
    ),
    Mutation(
        "BEAT without the token",
        SQL,
        "make_interval(secs => %s)\n      FROM said WHERE {holds}\n",
        f"make_interval(secs => %s)\n      FROM said WHERE {HOLDS}\n",
        (LEASES, LATE),
    ),
    Mutation(
        "LOCK without the token",
        SQL,
        "WHERE {key} = %s AND {lease_token} = %s FOR",
        "WHERE {key} = %s AND %s > 0 FOR",
        (LEASES, LATE, "tests/faults/test_deletion.py"),
    ),
    Mutation(
        "HELD without the token",
        SQL,
        'AND said.key = t.{key} AND t.{lease_token} = said.token"""\n\nRELEASE',
        'AND said.key = t.{key}"""\n\nRELEASE',
        (LEASES, LATE),
    ),
    Mutation(
        "MOVE without the from-state",
        SQL,
        "          FROM said WHERE {holds} AND t.{status} = said.was\n",
        "          FROM said WHERE {holds}\n",
        (LEASES,),
    ),
    Mutation(
        "SETTLE without the from-state",
        SQL,
        "      FROM said WHERE {holds} AND t.{status} = said.was\n    RETURNING",
        "      FROM said WHERE {holds}\n    RETURNING",
        (LEASES,),
    ),
    Mutation(
        "a foreground move keeps the token",
        "db/postgresql.py",
        "{lease_expires_at} = NULL, {lease_token} = {lease_token} + 1",
        "{lease_expires_at} = NULL, {lease_token} = {lease_token}",
        (RACES, "tests/machine/test_timed.py"),
    ),
    Mutation(
        "a release keeps the token",
        SQL,
        "{lease_expires_at} = NULL, {lease_token} = t.{lease_token} + 1\n      FROM said",
        "{lease_expires_at} = NULL, {lease_token} = t.{lease_token}\n      FROM said",
        (LEASES,),
    ),
    Mutation(
        "an outcome that stays keeps the token",
        SQL,
        "{lease_token} = t.{lease_token} + 1, {failures} = said.failures",
        "{lease_token} = t.{lease_token}, {failures} = said.failures",
        (LEASES,),
    ),
    Mutation(
        "a move keeps the token",
        SQL,
        "{lease_token} = t.{lease_token} + 1, {failures} = 0, {crashes} = 0",
        "{lease_token} = t.{lease_token}, {failures} = 0, {crashes} = 0",
        (LEASES,),
    ),
    Mutation(
        "a recovery keeps the token",
        SQL,
        "{lease_token} = {lease_token} + 1, {crashes} = {crashes} + 1",
        "{lease_token} = {lease_token}, {crashes} = {crashes} + 1",
        (LEASES,),
    ),
    Mutation(
        "a claim keeps the token",
        SQL,
        "UPDATE {name} SET {lease_token} = {lease_token} + 1, {lease_owner} = %s",
        "UPDATE {name} SET {lease_token} = {lease_token}, {lease_owner} = %s",
        (LEASES, LATE),
    ),
    Mutation(
        "a claim waits for locks",
        SQL,
        "LIMIT %s FOR NO KEY UPDATE SKIP LOCKED) AS found",
        "LIMIT %s FOR NO KEY UPDATE) AS found",
        (LEASES,),
    ),
    Mutation(
        "a commit waits for locks",
        SQL,
        'ORDER BY {key} FOR NO KEY UPDATE SKIP LOCKED)"""',
        'ORDER BY {key} FOR NO KEY UPDATE)"""',
        (LEASES,),
    ),
    Mutation(
        "LOCK waits for locks",
        SQL,
        "{lease_token} = %s FOR NO KEY UPDATE SKIP LOCKED",
        "{lease_token} = %s FOR NO KEY UPDATE",
        (LEASES,),
    ),
    Mutation(
        "a claim counts no crash",
        SQL,
        "CASE WHEN {lease_expires_at} IS NULL THEN 0 ELSE 1 END",
        "CASE WHEN {lease_expires_at} IS NULL THEN 0 ELSE 0 END",
        (LEASES,),
    ),
    Mutation(
        "a recovery counts no crash",
        SQL,
        "{crashes} = {crashes} + 1, {next_at}",
        "{crashes} = {crashes}, {next_at}",
        (LEASES,),
    ),
    Mutation(
        "crashes without a limit",
        "worker/attempt.py",
        "if lease.crashes >= self.max_crashes:",
        "if lease.crashes < 0:",
        ("tests/worker/test_attempt.py",),
    ),
    Mutation(
        "tries without a limit",
        "machine/policy.py",
        "return self.max_attempts is not None and failures >= self.max_attempts",
        "return False",
        ("tests/machine/test_policy.py", "tests/worker/test_attempt.py"),
    ),
    Mutation(
        "leases that have not run out are claimed",
        SQL,
        "               AND ({lease_expires_at} IS NULL OR {lease_expires_at} <= statement_timestamp())\n",
        "",
        (LEASES, RACES),
    ),
    Mutation(
        "leases that have run out are not claimed",
        SQL,
        "AND ({lease_expires_at} IS NULL OR {lease_expires_at} <= statement_timestamp())",
        "AND {lease_expires_at} IS NULL",
        (LEASES,),
    ),
    Mutation(
        "suspects are claimed with everybody",
        SQL,
        "AND ({lease_expires_at} IS NULL AND {crashes} = 0) <> %s",
        "AND %s::bool IS NOT NULL",
        (LEASES,),
    ),
    Mutation(
        "a row that was taken back goes before those it was left with",
        SQL,
        "{crashes} = {crashes} + 1, {next_at} = statement_timestamp()",
        "{crashes} = {crashes} + 1, {next_at} = {next_at}",
        (AGAIN,),
    ),
    Mutation(
        "a row whose lease ran out goes before those it was left with",
        SQL,
        "THEN {next_at} ELSE statement_timestamp() END",
        "THEN {next_at} ELSE {next_at} END",
        (AGAIN,),
    ),
    Mutation(
        "release() without its comparison",
        "machine/timed.py",
        "            names.lease_token: getattr(self.instance, names.lease_token),\n",
        "",
        ("tests/machine/test_timed.py",),
    ),
    Mutation(
        "a worker trusts a lease for ever",
        "worker/lease.py",
        "return not self.is_lost and now() < self.trusted_until",
        "return not self.is_lost",
        (CUT_OFF,),
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
            "SMF_SRC": str(copy),
            "PYTHONPATH": str(copy),
            "PYTHONDONTWRITEBYTECODE": "1",
        }
        command = [sys.executable, "-m", "pytest", "-q", "-rfE", "--tb=no", "-p", "no:cacheprovider", *mutation.tests]
        if not all_of_them:
            command.append("--exitfirst")
        ran = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    failed = re.findall(r"^(?:FAILED|ERROR) (.+?)(?: - .*)?$", ran.stdout, re.MULTILINE)
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
