"""`python -m draftwood_kernels.bench`: what kernels and whole steps take on the card at hand."""
