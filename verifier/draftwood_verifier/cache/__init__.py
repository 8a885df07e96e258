"""KV pages: who holds them (`allocator`), what they hold (`prefix`) and the tensors themselves (`pool`)."""
