"""What the model computes: its description, the plain fp32 reference, and the geometry around it."""
