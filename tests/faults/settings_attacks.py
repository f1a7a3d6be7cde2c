"""The settings of a worker whose handlers do more harm than those of the project: see `attacks.py`."""

from tests.faults.settings_injected import *  # noqa: F403

INSTALLED_APPS += ["tests.faults.attacks.Attacks"]  # noqa: F405
