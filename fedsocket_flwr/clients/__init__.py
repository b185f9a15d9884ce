"""The client's side, one file an algorithm."""
