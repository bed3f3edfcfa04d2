"""Claims the heads of free lanes and publishes them."""
