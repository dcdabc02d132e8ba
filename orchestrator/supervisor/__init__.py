"""Keeps deployments alive: shim, state machine, daemon. It never plans."""
