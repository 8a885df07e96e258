"""Metrics and spans of the gateway, made off the event loop from what the front doors write down."""
