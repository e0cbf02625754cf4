"""Functions of an Attribution that return tables and small structs: no files, no drawing."""
