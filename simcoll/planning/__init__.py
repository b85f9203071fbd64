"""Questions about clusters: sweeps, scenarios, reports. Uses the emulator; nothing below uses it."""
