"""What development and tests need and the product does not."""
