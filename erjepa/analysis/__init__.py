"""What is read from finished runs: logs and JSONL in, tables and pictures out."""
