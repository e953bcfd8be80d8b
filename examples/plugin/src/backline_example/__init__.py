"""An example of a plug-in for Backline. Backline reads `strassen.toml`, beside this file, without importing this package."""
