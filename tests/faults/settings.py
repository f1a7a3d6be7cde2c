"""The settings of a worker under fault: those of the suite, what a test says, and the failpoints."""

import json
import os

from tests.settings import *  # noqa: F403

INSTALLED_APPS += ["tests.faults.failpoints.Failpoints"]  # noqa: F405
STATEMACHINE_FIELDS = json.loads(os.environ.get("SMF_FAULTS_SETTINGS", "{}"))
