"""``examples_utils.parsing``: configurations of the vendor's applications, from files and from the command line."""
