"""`python -m decurion_cli`."""

from decurion_cli.main import main

main()
