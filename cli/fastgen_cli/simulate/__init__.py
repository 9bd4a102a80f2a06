"""A discrete-event simulation of a FastGenDeployment: its own functions, over a trace."""
