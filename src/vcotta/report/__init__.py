"""Tables, figures and one page, made from the files of finished runs."""
