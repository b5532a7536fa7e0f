"""The experiment of Ramesh et al. 2023: encoders pre-trained without text, centrally or by a federation, and then
taught."""
