"""What a run needs while it goes on: the round loop, the store of client states, callbacks, an engine in one process."""
