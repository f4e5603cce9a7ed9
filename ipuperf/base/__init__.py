"""What every room may import, and what knows no room: checks of arguments, near names, progress, versions."""
