"""Questions about clusters: sweeps over sizes and algorithms, scenarios, reports. Uses the emulator; nothing below uses it."""
