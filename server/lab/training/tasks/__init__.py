"""What can be trained besides the RNN-T that ships: a task for each network of Ramesh et al. 2023, Gao et al. 2022 and
Pelikan et al. 2023."""
