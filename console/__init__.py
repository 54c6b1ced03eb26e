"""What every command of the command line shares: types of parameters, the terminal, progress, how
signals end it, and how it asks a running service.
"""
