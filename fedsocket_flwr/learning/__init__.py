"""How a client learns: losses, teaching between Private and Q, and the calibration of Joint."""
