"""Models of libraries for texts, proteins, time series and tables."""
