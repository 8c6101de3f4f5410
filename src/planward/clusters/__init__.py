"""Work on other machines: Ray, and verl on it."""
