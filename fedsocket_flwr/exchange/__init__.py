"""What both sides agree on, and all that crosses the boundary; never imports torch."""
