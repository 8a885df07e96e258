"""The numbers that were chosen by measurement, in one place.

Measured on 2 cores with the embedded pair, one client, 8 prompts of 128 tokens in turn (plain, chain and tree
interleaved): idle OpenMP workers that sleep at once made a plain step 1.7 times as long, ones that spin for long take
the core from the other services; a tree of 10 nodes gave the most tokens a second, 6 to 14 were within 10 % of it. With
64 clients, a drafter that may take both cores for its large drafts made the whole service a tenth faster; small drafts
stay on one.
"""

# How often an idle OpenMP worker looks for work before it sleeps: enough for the pause between two linears.
SERVICE_ENVIRONMENT: dict[str, str] = {"GOMP_SPINCOUNT": "10000"}

# `--threads` of each service that computes.
VERIFIER_THREADS = 2
DRAFTER_THREADS = 2

# Nodes of a tree when the request does not say, and in `draftwood demo`.
NODE_LIMIT = 10
