"""The settings of a worker under fault whose surroundings a test changes, too."""

from tests import database_url
from tests.faults import injections
from tests.faults.settings import *  # noqa: F403

INSTALLED_APPS += ["tests.faults.injections.Injections"]  # noqa: F405
if skew := injections.injections().get("skew"):
    injections.set_wall_clock(skew)  # as early as possible, before anybody has taken the clock for himself
DATABASES["default"].update(injections.injections().get("database", {}))  # noqa: F405
if other := injections.injections().get("other"):
    DATABASES["other"].update(database_url.parse(other))  # noqa: F405
if others := injections.injections().get("databases"):
    DATABASES["main"] = DATABASES["default"]  # noqa: F405
    DATABASES.update({alias: {**DATABASES["main"], **database_url.parse(url)} for alias, url in others.items()})  # noqa: F405
DATABASE_ROUTERS = injections.injections().get("routers", [])
