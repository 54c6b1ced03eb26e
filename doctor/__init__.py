"""What is wrong with a service and its instances, in words, with the remedy: `GET /doctor`."""
