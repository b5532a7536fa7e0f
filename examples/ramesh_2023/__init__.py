"""The experiment of paper 000: encoders pre-trained without text, centrally or by a federation, and then taught."""
