"""The live page: its files, the stream of events that it reads, and what only it asks for."""
