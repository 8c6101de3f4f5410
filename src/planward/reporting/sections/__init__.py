"""The sections of the page: what each takes from the results, as tables, panels and sentences."""
