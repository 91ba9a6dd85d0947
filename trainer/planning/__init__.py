"""`moonmill plan`: what a run takes of its GPUs, by formulas alone, before anything is loaded."""
