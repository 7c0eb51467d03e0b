"""What this machine and a config will do, before a run is started."""
