"""`python -m specrun` is the `specrun` command."""

from specrun.cli import main

if __name__ == "__main__":
    main()
