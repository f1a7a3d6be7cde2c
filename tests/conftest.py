"""Fixtures for the whole suite. The database is chosen in settings.py."""
