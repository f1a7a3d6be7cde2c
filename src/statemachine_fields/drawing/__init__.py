"""Graphs as pictures. Pure Python: knows states and moves, and nothing of rows, pages or the database."""
