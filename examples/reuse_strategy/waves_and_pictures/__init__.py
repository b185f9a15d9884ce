"""A PyTorch model of two tasks, trained by clients of either; the strategy is fedsocket-flwr's, all else is this project's."""
