"""`python -m moonmill`: the command line."""

from moonmill.cli import main

if __name__ == "__main__":
    main()
