"""The admin in a real browser: what people see, press, type and hear."""
