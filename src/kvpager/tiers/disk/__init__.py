"""Pages in files that outlive the process."""
