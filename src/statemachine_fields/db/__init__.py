"""What is said to the database in SQL rather than through the ORM."""
