"""Private names of other projects, one module each; tests check that every name still exists."""
