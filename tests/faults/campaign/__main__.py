"""Do all harm at once to real workers for a while, and see that every promise holds in the end.

Each kind of harm has a timetable of its own that the seed decides, so that a campaign can be repeated, whole or in part.
When an invariant is broken, the campaign is repeated with fewer and fewer kinds of harm for up to ten minutes, and the
smallest set that still breaks it is told, with the command to repeat it.

    python -m tests.faults.campaign --seconds 120
    python -m tests.faults.campaign --seeds 1,2,3 --without restart-fast,restart-immediate
    python -m tests.faults.campaign --seed 7 --only kill,lose
"""

from __future__ import annotations

import argparse
import os
import random
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent.parent


def set_up() -> None:
    """Let Django know the lab. Its own database is never used: the campaign has a server to itself."""
    sys.path[:0] = [str(ROOT), str(ROOT / "testproject")]
    os.environ.update(
        DJANGO_SETTINGS_MODULE="tests.settings",
        SMF_DB="postgresql",
        DATABASE_URL="postgresql://nobody@/none?host=/none",
    )
    import django

    django.setup()


def parse(arguments: list[str] | None, kinds: dict[str, str]) -> argparse.Namespace:
    listed = "\n".join(f"  {name:<18} {what}" for name, what in kinds.items())
    parser = argparse.ArgumentParser(
        prog="python -m tests.faults.campaign",
        description=__doc__,
        epilog=f"kinds of harm:\n{listed}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )

    def chosen(text: str) -> list[str]:
        names = [name.strip() for name in text.split(",") if name.strip()]
        if unknown := [name for name in names if name not in kinds]:
            raise argparse.ArgumentTypeError(f"no such harm: {', '.join(unknown)}. See --list.")
        return names

    def seeds(text: str) -> list[int]:
        return [int(part) for part in text.split(",")]

    parser.add_argument("--seed", type=int, help="repeat what printed this seed; random without it, or SMF_SEED")
    parser.add_argument("--seeds", type=seeds, metavar="N,N,...", help="one campaign after the other")
    parser.add_argument(
        "--seconds", type=float, default=60.0, help="how long harm is done; then comes calm. Default: 60"
    )
    parser.add_argument(
        "--margin", type=float, metavar="SECONDS", help="how much longer than a lease and a poll calm may take"
    )
    parser.add_argument("--only", type=chosen, metavar="HARM,HARM,...", help="no other harm")
    parser.add_argument("--without", type=chosen, default=[], metavar="HARM,HARM,...", help="all other harm")
    parser.add_argument("--no-shrink", action="store_true", help="when an invariant breaks, leave it at that")
    parser.add_argument("--list", action="store_true", help="list the kinds of harm, and end")
    options = parser.parse_args(arguments)
    if options.list:
        print(listed)
        parser.exit()
    return options


def main(arguments: list[str] | None = None) -> int:
    set_up()
    from tests.faults.campaign.harms import KINDS
    from tests.faults.campaign.run import MARGIN, Campaign, Report, available, show_progress
    from tests.faults.campaign.shrink import MARGIN as SHORT_MARGIN
    from tests.faults.campaign.shrink import shrink
    from tests.faults.server import PostgreSQL

    options = parse(arguments, KINDS)
    kinds = [kind for kind in options.only or available() if kind not in options.without]
    if missing := [kind for kind in KINDS if kind not in available() and kind not in options.without]:
        print(f"Left out, as it needs what is not installed: {', '.join(missing)}.")
    default = int(os.environ.get("SMF_SEED") or random.SystemRandom().randrange(1_000_000))
    seeds = options.seeds or [default if options.seed is None else options.seed]
    programs = PostgreSQL.programs()
    if programs is None:
        print("There is no PostgreSQL here to start and stop.", file=sys.stderr)
        return 2
    server = PostgreSQL(programs)
    code = 0
    try:
        for seed in seeds:
            print(f"Seed {seed}: {options.seconds:g} s of {', '.join(kinds)}", flush=True)
            margin = options.margin or MARGIN
            report = Campaign(server, seed, options.seconds, kinds, margin=margin, progress=show_progress).run()
            show_progress("")
            print(report.text(), flush=True)
            if not report.broken:
                continue
            code = 1
            if not options.no_shrink:

                def repeat(seconds: float, subset: list[str], seed: int = seed) -> Report:
                    return Campaign(
                        server, seed, seconds, subset, margin=options.margin or SHORT_MARGIN, progress=show_progress
                    ).run()

                smallest = shrink(report, repeat, lambda line: print(f"\r{line}", flush=True))
                print(f"--- the smallest that still fails: {', '.join(smallest.kinds)}\n{smallest.text()}", flush=True)
    finally:
        server.end()
    return code


if __name__ == "__main__":
    sys.exit(main())
