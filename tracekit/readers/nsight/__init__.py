"""What the tables of Nsight Systems mean, wherever they are stored; readers of these formats share it."""
