"""How fast it is: what was measured, on which machine, and whether the masks were right."""
