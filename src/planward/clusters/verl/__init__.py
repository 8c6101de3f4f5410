"""GRPO through verl on a Ray cluster: the run as a folder of files, the job, and the rewards."""
