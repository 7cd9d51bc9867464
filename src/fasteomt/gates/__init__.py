"""Gates: pass or fail checks that a stack's masks are still the model's."""
