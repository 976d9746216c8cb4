"""Steps from a frozen value to a frozen value; no stage imports another."""
