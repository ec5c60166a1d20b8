"""What is opened, and where it lies, before a text is written."""
