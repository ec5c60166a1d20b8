"""What draft sources keep on disk: datastores, texts of earlier sessions and successor tables."""
