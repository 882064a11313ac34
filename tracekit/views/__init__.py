"""Answers of analyses for people: in the terminal, and as a page in a browser. Views see only the dataset."""
