"""TCPStore: client and server."""
