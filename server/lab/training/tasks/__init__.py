"""What can be trained besides the RNN-T that ships: a task for each network of papers 000, 003 and 004."""
