"""Rendezvous of processes, agreement on plans, and failure detection."""
