"""The store behind a socket: server, client, and the messages between them."""
