"""Ranks in separate processes: control messages, a real clock, a remote mailbox."""
