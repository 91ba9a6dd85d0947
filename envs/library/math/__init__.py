"""What `math-v0` is made of: problems from files and generated ones, and how an answer is judged."""
