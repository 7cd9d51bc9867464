"""What fasteomt is compared with, each under the name that its figures carry."""
