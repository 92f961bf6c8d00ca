"""Probes of somebody's training step: what one record moves, and how much noise there is."""
