"""Start processes, and find out who this process is."""
