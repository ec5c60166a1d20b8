"""Parts of the script that trains the demonstration target/draft pair."""
