"""Models and selectors as folders for other people: weights, what a prompt is made of, and a card from the results."""
