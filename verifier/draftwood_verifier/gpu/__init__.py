"""The target's step on a GPU: one copy in, launches that never wait for the host, one copy out."""
