"""Programs that race."""

from __future__ import annotations

import threading

from django.db import connections

from tests.patience import PATIENCE


def together(*programs):
    """Run programs at the same moment, each with a connection of its own; return what each gave or raised."""
    barrier = threading.Barrier(len(programs))
    results = [None] * len(programs)

    def run(number, program):
        try:
            barrier.wait(PATIENCE)
            results[number] = program()
        except Exception as error:  # noqa: BLE001 - the caller looks at it
            results[number] = error
        finally:
            connections.close_all()

    threads = [threading.Thread(target=run, args=item) for item in enumerate(programs)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE)
    return results
