"""What a checkpoint would be as a served model: found out from its configs and file headers."""
