"""An example of a plug-in for Backline: two libraries, whose rows are in `rows`."""
