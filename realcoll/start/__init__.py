"""Start processes, and find the rank of this one."""
