"""Models and admin classes that other packages have a part in, for the tests of the admin beside them."""
