"""The app of the event benchmark."""
