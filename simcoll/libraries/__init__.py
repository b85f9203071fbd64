"""Communication libraries as models of time: their constants from files, what they would run, and calibrations to measurements."""
