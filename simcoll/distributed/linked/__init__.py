"""Ranks in processes of their own: control messages, a real clock, a remote mailbox."""
