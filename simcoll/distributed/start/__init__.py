"""Start rank programs: in this process, or as several processes."""
