"""From users to settings: what a knob trades, what a restart will do, and which values are best."""
