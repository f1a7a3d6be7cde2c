"""All harm at once, for a while: `python -m tests.faults.campaign --help`."""
