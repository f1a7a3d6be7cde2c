"""Fixtures for the whole suite. The database is chosen in settings.py."""

pytest_plugins = ["statemachine_fields.pytest_plugin"]
