"""Entry point of `python -m fastgen_devcluster`."""

from fastgen_devcluster.cli import main

main()
