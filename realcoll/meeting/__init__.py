"""Where processes meet, agree on what they do, and find out who is to blame."""
