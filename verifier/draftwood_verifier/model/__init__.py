"""The target model on one device: no request, no schedule, only rows."""
