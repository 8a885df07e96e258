"""Metrics and spans of the verifier, made off the step path from what the engine writes down."""
