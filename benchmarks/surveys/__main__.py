"""python -m benchmarks.surveys [--quick] [--list] [--only NAME ...] [--json PATH] [--draw]."""

from benchmarks.surveys.command import main

if __name__ == "__main__":
    raise SystemExit(main())
