"""Any pairs whose answers are right when they are the target's text."""
