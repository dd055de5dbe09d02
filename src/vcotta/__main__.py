"""``python -m vcotta`` is the command ``vcotta``."""

from vcotta.cli import main

if __name__ == "__main__":
    main()
