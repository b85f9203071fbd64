"""Start processes, and find this process's rank."""
