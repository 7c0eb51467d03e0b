"""GSM8K: grade-school math questions with worked solutions."""
