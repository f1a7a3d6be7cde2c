"""The machine: which moves are legal, and the record of each one."""
