"""What the stand-in is made of."""
