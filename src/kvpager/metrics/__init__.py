"""What a running engine shows of itself to the outside: Prometheus, alerts, block map, events. Only reads."""
