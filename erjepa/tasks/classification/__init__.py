"""Text classification: the answer is one of the labels that the prompt lists."""
