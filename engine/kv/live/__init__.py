"""The running server's own KV blocks: its events, the tree they make, and what of it a screen shows."""
