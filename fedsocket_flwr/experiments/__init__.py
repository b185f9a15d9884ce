"""What starts many runs or processes."""
