"""Questions of school mathematics, and worked solutions."""
