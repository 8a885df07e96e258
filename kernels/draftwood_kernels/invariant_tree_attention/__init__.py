"""Tree attention whose rows have the same bits whatever else is in the batch, and whether a position is a tree node, a
plain row or part of a prefill chunk. Triton only: `tree_attention` chooses it where it is asked for.
"""
