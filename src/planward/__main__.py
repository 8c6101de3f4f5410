"""`python -m planward`: what `accelerate launch -m planward` runs."""

from planward.cli import main

main()
