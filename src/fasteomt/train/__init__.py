"""Training: so far, fast pre-training from scratch (`pretrain.py`)."""
