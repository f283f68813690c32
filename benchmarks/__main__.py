"""python -m benchmarks [--quick] [--list] [--rows NAME ...] [--json PATH] [--draw]."""

from benchmarks.command import main

if __name__ == "__main__":
    raise SystemExit(main())
