"""The phases of a job, for those who only name them."""

PHASES = {"mpi": ("start", "mpi", "run", "close", "end"), "store": ("start", "run", "close", "end")}
