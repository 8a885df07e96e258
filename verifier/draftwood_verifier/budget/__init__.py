"""How many draft nodes a step should look at, and whether drafts are worth waiting for (DESIGN 4)."""
