"""The numbers that were chosen by measurement, in one place."""

# Idle OpenMP workers must sleep: spinning ones steal the cores from the other services on a small machine.
SERVICE_ENVIRONMENT: dict[str, str] = {"OMP_WAIT_POLICY": "PASSIVE", "GOMP_SPINCOUNT": "0"}

# `--threads` of each service that computes.
VERIFIER_THREADS = 2
DRAFTER_THREADS = 2

# Nodes of a tree when the request does not say.
NODE_LIMIT = 16
# Nodes of a tree, and of a chain, in `draftwood demo`.
DEMO_NODE_LIMIT = 12
