"""What runs inside of a sandbox: one program, made of these modules in their order, for whatever Python is there.

Python 3.9 or newer and its standard library are all that it may use. `moonmill.sandboxes.bundle` puts it together.
"""
