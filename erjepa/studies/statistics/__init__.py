"""From numbers of runs to what is said of them; nothing here knows an experiment's files."""
