"""Run all tests of faults, the long versions too: `python -m tests.faults [--seed N] [pytest arguments]`."""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from pathlib import Path


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.faults", description=__doc__)
    parser.add_argument("--seed", type=int, help="repeat the run that printed this SMF_SEED")
    parser.add_argument("--short", action="store_true", help="only what the suite runs anyway")
    options, arguments = parser.parse_known_args()
    environment = {**os.environ, "SMF_DB": "postgresql", "SMF_FAULTS": "short" if options.short else "long"}
    if options.seed is not None:
        environment["SMF_SEED"] = str(options.seed)
    here = Path(__file__).parent
    command = [sys.executable, "-m", "pytest", str(here), *arguments]
    return subprocess.call(command, cwd=here.parent.parent, env=environment)


if __name__ == "__main__":
    sys.exit(main())
