"""The programs' own transcripts: where each one is, and what its lines say."""
