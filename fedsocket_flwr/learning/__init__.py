"""How a client learns and is measured: losses, teaching between Private and Q, calibration."""
