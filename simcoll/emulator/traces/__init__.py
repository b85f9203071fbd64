"""Timeline files of runs for Perfetto. They read results and change nothing."""
