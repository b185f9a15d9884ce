"""Parts of a user's own for fedsocket-flwr: recordings of a wrist-worn accelerometer, and what learns from them."""
