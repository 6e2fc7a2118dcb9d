"""The life of a broker (join, register, heartbeat, drain) and the controller's decisions."""
