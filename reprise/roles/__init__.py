"""One module for each process of the distributed form, and the HTTP server that they share."""
