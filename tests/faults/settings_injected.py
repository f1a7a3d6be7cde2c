"""The settings of a worker under fault whose surroundings a test changes, too."""

from tests.faults import injections
from tests.faults.settings import *  # noqa: F403

INSTALLED_APPS += ["tests.faults.injections.Injections"]  # noqa: F405
if skew := injections.injections().get("skew"):
    injections.set_wall_clock(skew)  # as early as possible, before anybody has taken the clock for himself
DATABASES["default"].update(injections.injections().get("database", {}))  # noqa: F405
