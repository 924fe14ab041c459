"""Models as files: finding, fetching, checking and loading them. Nothing here is imported unless asked for."""
