"""Backends, one folder each; they know the layers below and never one another."""
