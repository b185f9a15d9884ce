"""Data sets, their division over clients, and the fixed interface features that Q reads."""
