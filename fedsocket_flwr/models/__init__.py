"""The shared predictor Q, and the private architectures with their registry."""
