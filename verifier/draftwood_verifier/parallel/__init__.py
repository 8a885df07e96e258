"""One target on several ranks: their group and its end, what each rank holds, how they draw a token together."""
