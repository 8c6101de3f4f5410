"""Analysis of the economy's decisions and its section of the report."""
