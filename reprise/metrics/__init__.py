"""What each role tells Prometheus."""
