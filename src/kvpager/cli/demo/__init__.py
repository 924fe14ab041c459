"""The demonstration: what it asks, what it watches, how it shows it, and what it concludes."""
