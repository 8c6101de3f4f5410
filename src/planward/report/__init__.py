"""The HTML report: sections, figures, templates."""
