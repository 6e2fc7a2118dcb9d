"""What the cluster knows: commands, the image they build, and the store that proposes and reads."""
