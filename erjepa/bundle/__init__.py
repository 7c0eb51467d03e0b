"""A folder that installs and checks the project on a machine without a network."""
