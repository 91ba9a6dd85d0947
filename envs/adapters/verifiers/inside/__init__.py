"""What runs beside verifiers, in its own Python environment: the standard library, verifiers and what that brings."""
