def add_to(c): pass
