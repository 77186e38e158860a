"""Reverse-mode differentiation: a graph in, a graph of its gradients out."""
