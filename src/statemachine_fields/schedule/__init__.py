"""When a row is due."""
