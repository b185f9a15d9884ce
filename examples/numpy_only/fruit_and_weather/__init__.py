"""Logistic regression for two tasks that share how they read their features: numpy, Flower and the strategy, nothing else."""
