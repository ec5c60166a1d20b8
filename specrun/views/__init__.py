"""What several commands draw for people, with rich."""
